"""The queue of requests without a row, smallest key first."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

from core.types import Request


class WaitingQueue:
    """A heap. Ties go by age, and a request that is taken out early is skipped when it comes up."""

    def __init__(self) -> None:
        self._heap: list[tuple[Any, int, Request]] = []  # (key, age, request)
        self._present: dict[Request, None] = {}

    def __len__(self) -> int:
        return len(self._present)

    def __contains__(self, request: Request) -> bool:
        return request in self._present

    def __iter__(self) -> Iterator[Request]:
        return iter(self._present)

    def push(self, request: Request, key: Any, age: int) -> None:
        """Queue a request; no two may have the same age."""
        heapq.heappush(self._heap, (key, age, request))
        self._present[request] = None

    def first(self) -> Request:
        """The request with the smallest key; there must be one."""
        while self._heap[0][2] not in self._present:
            heapq.heappop(self._heap)
        return self._heap[0][2]

    def pop(self) -> Request:
        """Take the first one out."""
        request = self.first()
        heapq.heappop(self._heap)
        del self._present[request]
        return request

    def discard(self, request: Request) -> None:
        """Take a request out, wherever it is; it must not come back."""
        self._present.pop(request, None)
        if len(self._heap) > 2 * len(self._present) + 64:
            self._heap = [entry for entry in self._heap if entry[2] in self._present]
            heapq.heapify(self._heap)
