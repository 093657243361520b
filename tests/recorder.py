"""Stands in for CUDA's graphs where there are none.

Work is kept and run again at each replay; in pieces it is kept operator by operator, whose results
go to where they first were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
    _pop_mode_temporarily,
)
from torch.utils._pytree import tree_leaves

from plugins.kernels import torch as kernels
from plugins.runners.cuda_graph import runner as runner_module

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


class Tape(TorchDispatchMode):
    """Operators on tensors, as a graph keeps them: the same memory at each replay."""

    def __init__(self) -> None:
        super().__init__()
        self._steps: list[tuple[Any, Any, Any, Any]] = []
        self.result: Tensor | None = None
        self.replays = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        given = {_memory(x) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        new = [x for x in tree_leaves(found) if isinstance(x, Tensor) and _memory(x) not in given]
        if "empty" in func.__name__:  # memory only: no work
            return found
        if new or func._schema.is_mutable:  # all else is a view of what was there before
            self._steps.append((func, args, kwargs or {}, found))
        return found

    def let_go(self) -> None:
        return None

    def replay(self) -> None:
        self.replays += 1
        with torch.inference_mode():
            for func, args, kwargs, first in self._steps:
                again = func(*args, **kwargs)
                for old, new in zip(tree_leaves(first), tree_leaves(again), strict=True):
                    if isinstance(old, Tensor) and _memory(old) != _memory(new):
                        assert old.shape == new.shape, f"{func} gives other sizes at each replay"
                        old.copy_(new)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def on_tape(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """A method that computes one tensor of tensors, and is to be kept as an operator is."""
    method = getattr(owner, name)

    def kept(*args: Any) -> Any:
        mode = _get_current_dispatch_mode()
        if not isinstance(mode, Tape):
            return method(*args)
        with _pop_mode_temporarily():
            found = method(*args)
        mode._steps.append((method, args, {}, found))
        return found

    monkeypatch.setattr(owner, name, kept)


def install(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    """Let the graph runner capture on a CPU. -> what it captures with"""
    made: list[Recorder] = []

    def capturing_on(_device: torch.device) -> Recorder:
        made.append(Recorder())
        return made[-1]

    monkeypatch.setattr(runner_module, "capturing_on", capturing_on)
    # as on CUDA: a graph has no operator whose result is as large as its values say
    monkeypatch.setattr(kernels, "_without_negatives", kernels._repeated)
    return made


class Recorder:
    """Its interface is that of `plugins.runners.cuda_graph.capture.Capturing`."""

    def __init__(self, sizes: Callable[[int], int] = lambda number: 0) -> None:
        """`sizes`: bytes that the graph of a number, from 0, takes."""
        self.device = torch.device("cpu")
        self.graphs: list[Recorded | Tape] = []
        self.tidied = 0
        self._sizes = sizes

    @torch.inference_mode()
    def capture(self, work: Work) -> Recorded:
        work()
        recorded = Recorded(work, work())
        self.graphs.append(recorded)
        return recorded

    @torch.inference_mode()
    def capture_pieces(self, work: Callable[[Callable[[], None]], Tensor | None]) -> list[Tape]:
        work(lambda: None)
        tapes = [Tape()]
        tapes[-1].__enter__()

        def cut() -> None:
            tapes[-1].__exit__(None, None, None)
            tapes.append(Tape())
            tapes[-1].__enter__()

        try:
            tapes[-1].result = work(cut)
        finally:
            tapes[-1].__exit__(None, None, None)
        self.graphs += tapes
        return tapes

    def address(self, tensor: Tensor) -> Tensor:
        return tensor

    def wait(self) -> None:
        return None

    def used(self) -> int:
        return sum(map(self._sizes, range(len(self.graphs))))

    def tidy(self) -> None:
        self.tidied += 1
