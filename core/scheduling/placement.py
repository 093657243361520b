"""Where requests live: a row and pages for each that runs, shared pages where beginnings agree."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from core.scheduling.pages import PagePool
from core.scheduling.prefix import PrefixKeys
from core.scheduling.running import NEVER, RunningRequests

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from core.types import Ints, Limits, Request


class Placement:
    """Rows, pages and prefix cache together, so that they cannot disagree."""

    def __init__(self, limits: Limits) -> None:
        self.page_size = limits.page_size
        self.prefix_cache = limits.prefix_cache
        self.pool = PagePool(limits.pages)
        self.running = RunningRequests(limits.max_num_seqs)
        self.queries = 0  # tokens looked up in the prefix cache by admitted requests
        self.hits = 0  # of those, tokens found
        self._keys: dict[Request, PrefixKeys] = {}

    def pages_for(self, tokens: int) -> int:
        """Pages that hold so many tokens."""
        return -(-tokens // self.page_size)

    def find(self, request: Request) -> list[int]:
        """Cached pages that begin this request. At least one token is left to compute."""
        if not self._reads(request):
            return []
        full = (len(request) - 1) // self.page_size
        return self.pool.find(self._keys_of(request).of(request, 0, full))

    def _reads(self, request: Request) -> bool:
        # log probabilities of a prompt need its hidden states
        wanted = request.reads_cache and request.params.prompt_logprobs is None
        return self.prefix_cache and wanted

    def admit(self, request: Request, found: list[int], spare: int, step: int) -> bool:
        """Give a request a row, the pages that `find` found, and fresh ones for its other tokens.

        False, and nothing changes, if that would leave fewer than `spare` pages available.
        """
        fresh = self.pages_for(len(request)) - len(found)
        if fresh + self.pool.unheld(found) + spare > self.pool.available:
            return False
        self.pool.share(found)
        self.running.add(request, found, self.pool.take(fresh), self.page_size, step)
        if self._reads(request):
            self.queries += len(request)
            self.hits += request.computed
        if request.preemptions == 0:
            request.cached, request.started = request.computed, time.monotonic()
        return True

    def growth(self, rows: NDArray[np.intp], ends: Ints) -> Ints:
        """[n] pages that these rows lack for their first `ends` tokens [n]."""
        missing: Ints = -(-ends // self.page_size) - self.running.held[rows]
        return np.maximum(missing, 0)

    def grow(self, rows: NDArray[np.intp], requests: Sequence[Request], growth: Ints) -> None:
        """Append as many fresh pages to each request as `growth` says; they must be available."""
        pages = iter(self.pool.take(int(growth.sum())))
        self.running.held[rows] += growth
        for i in np.flatnonzero(growth).tolist():
            requests[i].pages += islice(pages, int(growth[i]))

    def remove(self, request: Request) -> None:
        """Take the row and the pages of a running request away."""
        self.pool.release(self.running.remove(request))

    def forget(self, request: Request) -> None:
        """Keep nothing more about a request that has ended and does not run."""
        self._keys.pop(request, None)

    def offer(self, rows: NDArray[np.intp], requests: Sequence[Request], step: int) -> None:
        """Let others find the pages that these requests have filled with tokens we know.

        `step`, or one before it, fills them.
        """
        if not self.prefix_cache:
            return
        running = self.running
        start = running.keyed[rows]
        full = np.minimum(running.known[rows], running.computed[rows]) // self.page_size
        more = np.flatnonzero(full > start)
        for i, first, end in zip(
            more.tolist(), start[more].tolist(), full[more].tolist(), strict=True
        ):
            self._offer(requests[i], first, end, step)

    def offer_until(self, request: Request, tokens: int, step: int) -> None:
        """The same for the first `tokens` tokens of a request whose step is only now planned."""
        start = int(self.running.keyed[request.row])
        full = min(tokens, len(request)) // self.page_size
        if self.prefix_cache and full > start:
            self._offer(request, start, full, step)

    def _offer(self, request: Request, start: int, end: int, step: int) -> None:
        keys = self._keys_of(request).of(request, start, end)
        for page, key in zip(request.pages[start:end], keys, strict=True):
            self.pool.offer(page, key, step)
        self.running.keyed[request.row] = end

    def withdraw(self, request: Request) -> None:
        """What a running request filled itself cannot be trusted: nobody shall find it again."""
        self.pool.forget(request.pages[self.running.shared[request.row] :])

    def withdraw_since(self, step: int) -> list[Request]:
        """Nothing filled in `step` or later can be trusted. -> requests that may have read it."""
        self.pool.forget_since(step)
        running = self.running
        return [r for r in running if running.since[r.row] >= step and running.shared[r.row] > 0]

    def reset(self) -> None:
        """Forget all content; what runs now is not offered to others any more."""
        self.pool.reset()
        self.running.keyed[self.running.order[0]] = NEVER

    def check(self, others: Iterable[Request]) -> None:
        """Assert that rows and pages add up; `others` are requests that hold none."""
        self.pool.check([request.pages for request in self.running])
        self.running.check()
        assert all(request.row < 0 and not request.pages for request in others)

    def _keys_of(self, request: Request) -> PrefixKeys:
        if (keys := self._keys.get(request)) is None:
            keys = self._keys[request] = PrefixKeys(request.salt, self.page_size)
        return keys
