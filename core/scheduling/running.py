"""The requests that hold a row, as columns, so that an ordinary step needs no loop over them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from core.types import Request

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int32]


NEVER = 2**31 - 1  # in `keyed`: nothing more of this request is offered


class RunningRequests:
    """One row per request for as long as it runs. A column [R] has one number for each row.

    While a request runs, `computed` here is the truth and the request's own field may lag; `sync`
    and `remove` bring it up to date.
    """

    def __init__(self, rows: int) -> None:
        self.known = np.zeros(rows, np.int32)  # tokens whose ids the host knows
        self.length = np.zeros(rows, np.int32)  # known, and one for each sample on its way
        self.computed = np.zeros(rows, np.int32)  # tokens whose step is planned
        self.limit = np.zeros(rows, np.int32)  # the most tokens it may hold
        self.held = np.zeros(rows, np.int32)  # pages
        self.keyed = np.zeros(rows, np.int32)  # leading pages offered to the prefix cache
        self.shared = np.zeros(rows, np.int32)  # leading pages that the prefix cache gave
        self.since = np.zeros(rows, np.int64)  # number of the step of its admission
        self.tenant = np.zeros(rows, np.int32)  # changes with each holder of the row
        self._free = list(range(rows - 1, -1, -1))
        self._released: list[int] = []
        self._requests: dict[Request, None] = {}  # in the order of admission
        self._order: tuple[NDArray[np.intp], list[Request]] | None = None

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request: Request) -> bool:
        return request in self._requests

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    @property
    def order(self) -> tuple[NDArray[np.intp], list[Request]]:
        """Rows in use [n] and their requests, in the order of admission. Neither may be changed."""
        if self._order is None:
            requests = list(self._requests)
            rows = np.fromiter((r.row for r in requests), np.intp, len(requests))
            self._order = rows, requests
        return self._order

    def add(
        self, request: Request, shared: list[int], fresh: list[int], page_size: int, step: int
    ) -> None:
        """Give a request a row, cached pages that begin it, and empty ones for its other tokens."""
        row, pages, computed = self._free.pop(), shared + fresh, len(shared) * page_size
        request.row, request.pages, request.computed = row, pages, computed
        self.known[row] = self.length[row] = len(request)
        self.computed[row] = computed
        self.limit[row] = request.limit
        self.held[row] = len(pages)
        self.keyed[row] = self.shared[row] = len(shared)
        self.since[row] = step
        self.tenant[row] += 1
        self._requests[request] = None
        self._order = None

    def remove(self, request: Request) -> list[int]:
        """Take a request's row away; returns its pages, which it no longer holds."""
        row, pages = request.row, request.pages
        del self._requests[request]
        self._order = None
        self.tenant[row] += 1  # results still on their way are not for the next holder
        self._free.append(row)
        self._released.append(row)
        request.computed = int(self.computed[row])
        request.row, request.pages = -1, []
        return pages

    def sync(self) -> None:
        """Bring `Request.computed` up to date everywhere."""
        rows, requests = self.order
        for request, computed in zip(requests, self.computed[rows].tolist(), strict=True):
            request.computed = computed

    def take_released(self) -> Ints:
        """Rows that became free since the last call."""
        rows = np.array(self._released, np.int32)
        self._released.clear()
        return rows

    def check(self) -> None:
        """Assert what must hold between any two steps."""
        rows, requests = self.order
        assert sorted([*rows.tolist(), *self._free]) == list(range(len(self.known)))
        for row, request in zip(rows.tolist(), requests, strict=True):
            assert request.row == row
            assert self.known[row] == len(request), f"{request.id}: the host lost count"
            assert self.held[row] == len(request.pages), f"{request.id}: pages lost count"
            assert 0 <= self.computed[row] <= self.length[row]
            assert self.keyed[row] <= self.held[row] or self.keyed[row] == NEVER
