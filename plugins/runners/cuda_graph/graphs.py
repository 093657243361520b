"""The graphs of all sizes of decode steps: captures them, and replays the one that fits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from core.importing import installed
from plugins.runners.cuda_graph import ends
from plugins.runners.cuda_graph.buffers import Buffers, StaticBatch
from plugins.runners.cuda_graph.sizes import chosen, thinned

if TYPE_CHECKING:
    from torch import Tensor

    from core.interfaces import Step
    from core.types import Decodes, Limits
    from plugins.runners.cuda_graph.capture import Captured, Capturing


class Graph:
    """A step of one size. In two parts if a backend must be refreshed when its tensors are made."""

    def __init__(self, static: StaticBatch, parts: Sequence[Captured]) -> None:
        self.static, self._parts = static, parts

    def replay(self, decodes: Decodes) -> None:
        self.static.load(decodes)
        self._parts[0].replay()
        if len(self._parts) > 1:
            self.static.refresh(decodes)
            self._parts[1].replay()

    @property
    def logits(self) -> Tensor:
        """[size, V] of the last replay of any graph."""
        logits = self._parts[-1].result
        assert logits is not None
        return logits


class Graphs:
    """One graph for each of `sizes`, ascending, captured when it is first asked for."""

    def __init__(
        self, step: Step, limits: Limits, sizes: Sequence[int], capturing: Capturing
    ) -> None:
        self.step, self.sizes, self._capturing = step, list(sizes), capturing
        self.samples = step.sampler.graphable  # else the graphs end at the logits
        self._buffers = Buffers(step, limits, self.sizes[-1])
        self._ends: Any = ends
        if capturing.device.type == "cuda" and installed("triton"):
            from plugins.runners.cuda_graph import kernels

            self._ends = kernels
        self._graphs: dict[int, Graph] = {}

    def __len__(self) -> int:
        return len(self._graphs)

    def replay(self, decodes: Decodes) -> Graph:
        """Start the step on the smallest graph that has room for it."""
        size = chosen(self.sizes, len(decodes.rows))
        graph = self._graphs.get(size)
        if graph is None:
            graph = self.capture(size)
            self._capturing.tidy()
        graph.replay(decodes)
        return graph

    def capture(self, size: int) -> Graph:
        """Capture a size, if it is not yet. What it runs meanwhile is nothing but padding."""
        if size in self._graphs:
            return self._graphs[size]
        step, static = self.step, StaticBatch(self._buffers, size)
        static.load(None)

        def begin() -> None:
            self._ends.begin(static)

        def rest() -> Tensor:
            static.plan(step.backends)
            logits = step.logits(step.forward(static.batch), static.batch)
            if self.samples:
                step.sample(logits, static.batch)
                self._ends.finish(static, logits)
            return logits

        def whole() -> Tensor:
            begin()
            return rest()

        parts = [begin, rest] if static.private else [whole]
        graph = Graph(static, [self._capturing.capture(part) for part in parts])
        self._graphs[size] = graph
        return graph

    def measure(self) -> tuple[int, int]:
        """Capture the two largest. -> bytes of the first, and of each one after it."""
        used = [self._capturing.used()]
        for size in reversed(self.sizes[-2:]):
            self.capture(size)
            used.append(self._capturing.used())
        taken = [max(after - before, 0) for before, after in pairwise(used)]
        return taken[0], taken[1] if len(taken) > 1 else 0

    def thin_out(self, count: int) -> None:
        """Do with so many sizes."""
        self.sizes = thinned(self.sizes, count)
        self._graphs = {size: self._graphs[size] for size in self.sizes if size in self._graphs}

    def capture_all(self) -> None:
        """The largest first: the others find their memory in what it has freed."""
        for size in reversed(self.sizes):
            self.capture(size)
        self._capturing.tidy()
