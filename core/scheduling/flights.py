"""Steps on their way: takes in their results, whatever became of their requests meanwhile."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from core.scheduling.placement import Placement
    from core.types import Ints, Request, StepOutput, StepPlan


@dataclass(slots=True, eq=False)
class Flight:
    """A plan without its result. `tenants` tells whether a row still has the same holder."""

    plan: StepPlan
    rows: NDArray[np.intp]  # [B]
    tenants: Ints  # [B]
    void: set[Request] = field(default_factory=set)  # their results are to be ignored


class Flights:
    """Plans in the order of their execution, and what is still owed to which request.

    Between a plan and its result a request may end (then its ids are dropped), or lose its row to
    preemption (then its ids are kept, so that no sample is made twice).
    """

    def __init__(self, placement: Placement, vocab_size: int) -> None:
        self._placement = placement
        self._flights: deque[Flight] = deque()
        self._stops = np.zeros(vocab_size, np.bool_)  # ids that end any request
        self.owed: dict[Request, int] = {}  # samples on their way to requests without a row
        self.unsettled: set[Request] = set()  # got more or fewer ids than their next plan expected

    def __len__(self) -> int:
        return len(self._flights)

    def watch(self, stop_ids: Iterable[int]) -> None:
        """Look out for these ids from now on. Whether one ends a request is asked again there."""
        self._stops[[i for i in stop_ids if 0 <= i < len(self._stops)]] = True

    def launch(self, plan: StepPlan) -> None:
        """A plan is made."""
        running, rows = self._placement.running, plan.rows.astype(np.intp)
        running.computed[rows] = plan.starts + plan.counts
        running.length[rows] += plan.sample
        self._flights.append(Flight(plan, rows, running.tenant[rows]))

    def oldest(self) -> StepPlan | None:
        """The plan whose result is due next."""
        return self._flights[0].plan if self._flights else None

    def skip(self) -> None:
        """The result of the oldest plan will never come."""
        self._flights.popleft()

    def forget(self, request: Request) -> None:
        """A request has ended."""
        self.owed.pop(request, None)
        self.unsettled.discard(request)

    def leave(self, request: Request) -> None:
        """A running request is about to lose its row, but wants the samples on their way to it."""
        running = self._placement.running
        if owed := int(running.length[request.row] - running.known[request.row]):
            self.owed[request] = owed
        self.unsettled.discard(request)

    def void(self, requests: Iterable[Request]) -> None:
        """Ignore all results on their way to these requests."""
        for request in requests:
            self.forget(request)
            for flight in self._flights:
                flight.void.add(request)

    def land(
        self, plan: StepPlan, output: StepOutput, step: int
    ) -> tuple[list[Request], list[Request]]:
        """Append the ids of the oldest plan. -> requests with news; of those, the ended ones.

        Ended requests have their reason and still hold their row. Pages whose tokens are all
        known now are offered to the prefix cache under the number `step`.
        """
        flight = self._flights.popleft()
        assert flight.plan is plan, f"the result of step {plan.number} is not the one due"
        assert output.number == plan.number
        running = self._placement.running
        rows, tenants, requests = flight.rows, flight.tenants, plan.requests
        picked = np.flatnonzero(plan.sample)
        if len(picked) < len(rows):
            rows, tenants = rows[picked], tenants[picked]
            requests = [requests[b] for b in picked.tolist()]
        usual = running.tenant[rows] == tenants
        counts = output.counts if output.counts is not None else np.ones(len(rows), np.int32)
        first = np.cumsum(counts) - counts  # where the ids of each one begin
        usual &= counts == 1
        told = ((plan.requests[b], text) for b, text in output.errors.items())
        failed = {request: text for request, text in told if request not in flight.void}
        if failed or self.unsettled:
            odd = failed.keys() | self.unsettled
            usual &= np.array([request not in odd for request in requests], np.bool_)

        news: list[Request] = []
        if not usual.all():
            for s in np.flatnonzero(~usual).tolist():
                request = requests[s]
                if request in failed or request in flight.void or request.finish_reason:
                    continue
                ids = output.ids[first[s] : first[s] + counts[s]].tolist()
                self._append(request, ids, step)
                if ids:
                    news.append(request)
            rows, first = rows[usual], first[usual]
            requests = list(compress(requests, usual.tolist()))
        ended = [request for request in news if request.finish_reason]
        ended += self._append_one_each(rows, requests, output.ids[first], step)
        for request, text in failed.items():
            if request.finish_reason is None:
                request.finish_reason, request.error = "error", text
                ended.append(request)
                news.append(request)
        return news + requests, ended

    def _append_one_each(
        self, rows: NDArray[np.intp], requests: list[Request], ids: Ints, step: int
    ) -> list[Request]:
        """The ordinary case, for any number of running requests. -> those that end."""
        running = self._placement.running
        for request, token in zip(requests, ids.tolist(), strict=True):
            request.output.append(token)
        running.known[rows] += 1
        self._placement.offer(rows, requests, step)
        perhaps = self._stops.take(ids, mode="clip") | (running.known[rows] >= running.limit[rows])
        return [requests[i] for i in np.flatnonzero(perhaps).tolist() if end(requests[i])]

    def _append(self, request: Request, ids: list[int], step: int) -> None:
        """Any number of ids for one request, which may have lost its row."""
        taken = 0
        for token in ids:
            request.output.append(token)
            taken += 1
            if end(request):
                break
        running, row = self._placement.running, request.row
        if row < 0:
            self.owed[request] -= 1
            if not self.owed[request]:
                del self.owed[request]
            return
        running.known[row] += taken
        running.length[row] += taken - 1
        if running.known[row] == running.length[row]:
            # a step planned on a token that never came has computed nothing of use
            running.computed[row] = min(running.computed[row], running.known[row] - 1)
            self.unsettled.discard(request)
        else:
            self.unsettled.add(request)
        self._placement.offer(np.array([row]), [request], step)


def end(request: Request) -> bool:
    """Whether its last token ends a request; gives it the reason."""
    token = request.output[-1]
    if token in request.stop_ids and len(request.output) >= request.params.min_tokens:
        request.finish_reason, request.stop_reason = "stop", token
    elif len(request) >= request.limit:
        request.finish_reason = "length"
    return request.finish_reason is not None
