"""Stands in for CUDA's graphs where there are none: work is kept and run again at each replay."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Work = Callable[[], Tensor | None]


class Recorded:
    """What one graph would be."""

    def __init__(self, work: Work, result: Tensor | None) -> None:
        self._work, self.result = work, result
        self.replays = 0

    def let_go(self) -> None:
        return None

    def replay(self) -> None:
        self.replays += 1
        with torch.inference_mode():
            self.result = self._work()


class Recorder:
    """Its interface is that of `plugins.runners.cuda_graph.capture.Capturing`."""

    def __init__(self, sizes: Callable[[int], int] = lambda number: 0) -> None:
        """`sizes`: bytes that the graph of a number, from 0, takes."""
        self.device = torch.device("cpu")
        self.graphs: list[Recorded] = []
        self.tidied = 0
        self._sizes = sizes

    @torch.inference_mode()
    def capture(self, work: Work) -> Recorded:
        work()
        self.graphs.append(Recorded(work, work()))
        return self.graphs[-1]

    def used(self) -> int:
        return sum(map(self._sizes, range(len(self.graphs))))

    def tidy(self) -> None:
        self.tidied += 1
