"""What graphs of several sizes have in common: when each is captured, and how all end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from plugins.runners.cuda_graph import ends

if TYPE_CHECKING:
    from core.interfaces import Step
    from plugins.runners.cuda_graph.capture import Capturing

G = TypeVar("G")


class BySize(ABC, Generic[G]):
    """One graph for each of `sizes`, ascending, captured when it is first asked for."""

    def __init__(self, step: Step, sizes: Sequence[int], capturing: Capturing) -> None:
        self.step, self.sizes, self.capturing = step, list(sizes), capturing
        self._ends: Any = ends
        if capturing.device.type == "cuda":
            from plugins.runners.cuda_graph import kernels

            self._ends = kernels
        self._graphs: dict[int, G] = {}

    def __len__(self) -> int:
        return len(self._graphs)

    def of(self, size: int) -> G:
        """The graph of a size."""
        if size not in self._graphs:
            self.capture(size)
            self.capturing.tidy()
        return self._graphs[size]

    def capture(self, size: int) -> None:
        """Capture a size, if it is not yet."""
        if size not in self._graphs:
            self._graphs[size] = self._captured(size)

    @abstractmethod
    def _captured(self, size: int) -> G:
        """A new graph. What it runs meanwhile is nothing but padding."""

    @abstractmethod
    def rehearse(self, size: int) -> None:
        """Run the model as a capture of this size would, for the kernels that it takes. Nothing
        is read or kept: launches may be left out, and results be nonsense."""

    def capture_all(self) -> None:
        """The largest first: the others find their memory in what it has freed."""
        for size in reversed(self.sizes):
            self.capture(size)
        self.capturing.tidy()

    def close(self) -> None:
        """Drop all graphs, and with the last of them the memory that they share."""
        self._graphs.clear()
