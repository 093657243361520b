"""A scheduler and a modelled worker, driven step by step as the engine does."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from core.interfaces import Scheduler
from core.sampling.params import SamplingParams
from core.testing.modelled_worker import VOCAB, ModelledWorker
from core.types import Limits, Request, StepPlan
from plugins.scheduling.fcfs import FirstComeFirstServed

NO_STOP = frozenset[int]()


def make_limits(**changes: Any) -> Limits:
    sizes: dict[str, Any] = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_length": 512,
        "page_size": 4,
        "pages": 64,
        "vocab_size": VOCAB,
        "check": True,
    }
    return Limits(**{**sizes, **changes})


def make_request(
    id: str, prompt: int | Sequence[int], new: int = 4, arrival: float = 0.0, **fields: Any
) -> Request:
    """`prompt` is its tokens, or how many tokens that no other id's prompt begins with."""
    if isinstance(prompt, int):
        first = 100 + sum(map(ord, id))
        prompt = [first + 1000 * position for position in range(prompt)]
    params = SamplingParams(
        min_tokens=fields.pop("min_tokens", 0), prompt_logprobs=fields.pop("prompt_logprobs", None)
    )
    limit = fields.pop("limit", len(prompt) + new)
    return Request(id, list(prompt), params, limit=limit, arrival=arrival, **fields)


class SmallEngine:
    """`step` plans one step and takes in one result, `depth` steps later."""

    def __init__(
        self,
        scheduler: type[Scheduler] = FirstComeFirstServed,
        *,
        depth: int = 1,
        options: dict[str, Any] | None = None,
        **limits: Any,
    ) -> None:
        self.limits = make_limits(**limits)
        self.scheduler = scheduler(scheduler.Options(**(options or {})), self.limits)
        self.worker = ModelledWorker(
            self.limits.max_num_seqs,
            self.limits.pages,
            self.limits.page_size,
            self.limits.max_num_batched_tokens,
        )
        self.depth = depth
        self.flights: deque[StepPlan] = deque()

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.add(request)

    def plan(self) -> StepPlan | None:
        plan = self.scheduler.plan()
        if plan is not None:
            self.flights.append(plan)
        return plan

    def land(self) -> list[Request]:
        plan = self.flights.popleft()
        return self.scheduler.update(plan, self.worker.execute(plan))

    def step(self) -> StepPlan | None:
        plan = self.plan()
        if self.flights and (plan is None or len(self.flights) > self.depth):
            self.land()
        return plan

    def run(self, most: int = 5000) -> list[StepPlan]:
        """Step until nothing is left; returns the plans."""
        plans = []
        for _ in range(most):
            if not (self.scheduler.has_work() or self.flights):
                return plans
            if (plan := self.step()) is not None:
                plans.append(plan)
        raise AssertionError(f"no end: {self.scheduler.statistics()}")


def share(plan: StepPlan | None, request: Request) -> int:
    """How many tokens of a request a plan computes."""
    if plan is None or request not in plan.requests:
        return 0
    return int(plan.counts[plan.requests.index(request)])
