"""Queues, token budget, chunked prefill and preemption: everything but the order of requests."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from core.errors import Mistakes, UserError
from core.interfaces import Scheduler
from core.scheduling.columns import compose
from core.scheduling.flights import Flights
from core.scheduling.placement import Placement
from core.scheduling.waiting import WaitingQueue

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from core.types import FinishReason, Ints, Limits, Request, StepOutput, StepPlan


class QueueScheduler(Scheduler):
    """Mixes prompts and decoding in every step, first things first.

    1. Each running request gets one token of the budget. There are never more running requests
       than the budget has tokens, so none is left out.
    2. Running requests that have more to compute, prompts mostly, share the rest in the order of
       their admission.
    3. Waiting requests are admitted in `order`, with a row and with pages for all their tokens,
       while rows, pages and budget last. The first that does not fit holds up those behind it.

    A request that needs a page when there is none sends `victim` back to the queue, where it waits
    to be computed anew; what it has sampled stays. A waiting request never displaces a running one.

    A subclass gives `order`, and `victim` if the last one in that order is not the right one.
    """

    @dataclass
    class Options(Scheduler.Options):
        chunked_prefill: bool = field(
            default=True,
            metadata={"help": "compute a prompt in parts when it exceeds what a step has room for"},
        )
        max_chunk: int = field(
            default=0,
            metadata={"help": "most tokens of one prompt in a step, to leave others room; 0: any"},
        )
        watermark: float = field(
            default=0.01,
            metadata={
                "help": "share of the pages that an admission leaves to the running requests, "
                "so that they can grow before one of them is sent back"
            },
        )

        def __post_init__(self) -> None:
            mistakes = Mistakes()
            with mistakes.noted():
                super().__post_init__()
            if self.max_chunk < 0:
                mistakes.add(f"max_chunk must be 0 or more tokens, and is {self.max_chunk}.")
            elif self.max_chunk and not self.chunked_prefill:
                mistakes.add("max_chunk needs chunked_prefill: without it no prompt is cut.")
            if not 0 <= self.watermark < 1:
                mistakes.add(f"watermark must be a share below 1, and is {self.watermark}.")
            mistakes.tell()

    options: Options

    def __init__(self, options: Options, limits: Limits) -> None:
        super().__init__(options, limits)
        self.placement = Placement(limits)
        self.running = self.placement.running
        self.waiting = WaitingQueue()
        self.flights = Flights(self.placement, limits.vocab_size)
        self.budget = limits.max_num_batched_tokens
        self._most_running = min(limits.max_num_seqs, self.budget)
        self._spare = int(options.watermark * limits.pages)
        self._ages: dict[Request, int] = {}  # of every request that has not ended
        self._added = self._number = self._tokens = self._preemptions = 0

    @abstractmethod
    def order(self, request: Request) -> Any:
        """Anything that compares: the smallest is admitted first, and on a tie the oldest.

        Asked each time a request is queued, so it must not change while the request waits.
        """

    def victim(self, running: Sequence[Request]) -> Request:
        """Which running request goes back to the queue; `running` is in the order of admission."""
        return max(reversed(running), key=self.order)

    def add(self, request: Request) -> None:
        """Queue a request. UserError if it could never be run."""
        if reason := self._rejects(request):
            raise UserError(f"request {request.id}: {reason}")
        assert request not in self._ages, f"request {request.id} was added before"
        self.flights.watch(request.stop_ids)
        self._ages[request] = self._added
        self._added += 1
        self._queue(request)

    def _rejects(self, request: Request) -> str | None:
        size, limit, pages = len(request.prompt), request.limit, self.limits.pages
        if size == 0:
            return "the prompt has no tokens. Give at least one."
        if limit <= size:
            return f"a prompt of {size} tokens leaves no room below the limit of {limit}."
        # the last token ends the request, so its keys and values are never computed
        if (needed := self.placement.pages_for(limit - 1)) > pages:
            return (
                f"{limit} tokens need {needed} pages of the cache, which has {pages}. "
                "Ask for fewer tokens, or give the cache more memory."
            )
        if not self.options.chunked_prefill and size > self.budget:
            return (
                f"a prompt of {size} tokens is over scheduler.max_num_batched_tokens, "
                f"{self.budget}. Raise it, or set scheduler.chunked_prefill=true."
            )
        return None

    def finish(self, request: Request, reason: str) -> None:
        """End a request wherever it is; its pages become free. Nothing happens the second time."""
        if request.finish_reason is None:
            request.finish_reason = cast("FinishReason", reason)
            self._retire(request)
            self._check()

    def plan(self) -> StepPlan | None:
        """The next step, or None while nothing can be planned before an update, or at all."""
        place, running = self.placement, self.running
        displaced = False
        while True:
            rows, requests = running.order
            starts, held = running.computed[rows], running.held[rows]
            counts = self._counts(rows, starts)
            grown = place.growth(rows, starts + counts)
            if int(grown.sum()) <= place.pool.available:
                break
            self._displace(requests)
            displaced = True
        place.grow(rows, requests, grown)
        # pages that this step fills can be shared by the requests it admits
        for i in np.flatnonzero(counts > 1).tolist():
            place.offer_until(requests[i], int(starts[i] + counts[i]), self._number)
        admitted = [] if displaced else self._admit(self.budget - int(counts.sum()))
        columns = np.array([rows, starts, counts, held, grown], np.int32)
        plan = compose(self._number, columns, requests, admitted, running)
        if plan is None:
            self._watch()
            return None
        self.flights.launch(plan)
        self._number += 1
        self._tokens += int(plan.counts.sum())
        self._check()
        return plan

    def _counts(self, rows: NDArray[np.intp], starts: Ints) -> Ints:
        """How many tokens each running request computes in this step; 0 where it must wait."""
        length = self.running.length[rows]
        todo: Ints = length - starts
        todo[length >= self.running.limit[rows]] = 0  # its last token is on its way
        for request in self.flights.unsettled:
            todo[rows == request.row] = 0
        counts: Ints = np.minimum(todo, 1)
        left = self.budget - int(counts.sum())
        for i in np.flatnonzero(todo > 1).tolist():
            counts[i] = max(1, self._chunk(int(todo[i]), 1 + left))
            left -= int(counts[i]) - 1
        return counts

    def _chunk(self, todo: int, left: int) -> int:
        """How many of `todo` tokens to compute when the budget has `left`; 0: not now."""
        if self.options.chunked_prefill:
            return min(todo, left, self.options.max_chunk or left)
        # only a request that comes back with its output can be larger than the whole budget
        return min(todo, left) if todo <= left or todo > self.budget else 0

    def _admit(self, left: int) -> list[tuple[Request, int]]:
        """Admit waiting requests while rows, pages and `left` tokens last, with their counts."""
        admitted = []
        while left and self.waiting and len(self.running) < self._most_running:
            request = self.waiting.first()
            if request in self.flights.owed:
                break  # not all its tokens are known here
            found = self.placement.find(request)
            start = len(found) * self.limits.page_size
            count = self._chunk(len(request) - start, left)
            spare = self._spare if self.running else 0
            if not count or not self.placement.admit(request, found, spare, self._number):
                break
            self.waiting.pop()
            if count > 1:  # who decodes in this step may read what it writes at once
                self.placement.offer_until(request, start + count, self._number)
            admitted.append((request, count))
            left -= count
        return admitted

    def _displace(self, requests: list[Request]) -> None:
        """Send the victim back to the queue, because pages have run out."""
        self.running.sync()
        request = self.victim(requests)
        assert request in self.running, f"{type(self).__name__}.victim chose none that runs"
        self.flights.leave(request)
        self._send_back(request)

    def _send_back(self, request: Request) -> None:
        self.placement.remove(request)
        request.computed = 0
        request.preemptions += 1
        self._preemptions += 1
        self._queue(request)

    def _queue(self, request: Request) -> None:
        self.waiting.push(request, self.order(request), self._ages[request])

    def _watch(self) -> None:
        """Nothing was planned: that must be because a result is due, or no work is left."""
        if self.has_work() and not self.flights:
            numbers = ", ".join(f"{key} {value}" for key, value in self.statistics().items())
            waiting = f"; first in the queue: {self.waiting.first().id}" if self.waiting else ""
            raise RuntimeError(f"the scheduler stands still with work left: {numbers}{waiting}")

    def update(self, plan: StepPlan, output: StepOutput) -> list[Request]:
        """Take in the result of the oldest plan. -> requests that got ids, or ended with an error.

        Ids for a request that has ended since, and those after its end, are dropped. When results
        of older plans never came, their steps have failed: see `drop`.
        """
        while (oldest := self.flights.oldest()) is not None and oldest is not plan:
            self.drop(r for r in oldest.requests if r.finish_reason is None)
            self.flights.skip()
        news, ended = self.flights.land(plan, output, self._number)
        for request in ended:
            self._retire(request)
        self._check()
        return news

    def drop(self, requests: Iterable[Request]) -> None:
        """A step with these requests has failed: nothing that it should have written is there.

        Whatever it or a later step was to put into the prefix cache leaves it. These requests,
        and those that read pages of it, go back to the queue to be computed anew, and what is on
        its way to them is ignored. Use `finish` for those that shall not be tried again.
        """
        oldest = self.flights.oldest()
        readers = self.placement.withdraw_since(oldest.number if oldest else self._number)
        # one without a row may have read such pages while it had them
        again = dict.fromkeys([*requests, *readers, *self.flights.owed])
        self.flights.void(again)
        for request in again:
            if request in self.running:
                self._send_back(request)
        self._check()

    def _retire(self, request: Request) -> None:
        """Nothing is kept of a request that has ended, but what it left in the prefix cache."""
        if request in self.running:
            if request.finish_reason == "error":
                self.placement.withdraw(request)
            self.placement.remove(request)
        self.waiting.discard(request)
        self.flights.forget(request)
        self.placement.forget(request)
        self._ages.pop(request, None)

    def has_work(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self.waiting or self.running)

    def reset_prefix_cache(self) -> None:
        """Forget all cached content, say because the weights have changed."""
        self.placement.reset()
        self._check()

    def statistics(self) -> dict[str, int]:
        """Counters. Pages, requests and tokens; `prefix_*` count tokens, evictions pages."""
        pool = self.placement.pool
        return {
            "running": len(self.running),
            "waiting": len(self.waiting),
            "pages_total": pool.total,
            "pages_free": pool.free,
            "pages_cached": pool.cached,
            "pages_owned": pool.owned,
            "prefix_queries": self.placement.queries,
            "prefix_hits": self.placement.hits,
            "prefix_evictions": pool.evictions,
            "preemptions": self._preemptions,
            "steps": self._number,
            "planned_tokens": self._tokens,
        }

    def _check(self) -> None:
        if self.limits.check:
            self.placement.check(self.waiting)
            assert self._ages.keys() == {*self.waiting, *self.running}
