"""Random traffic for a scheduler, driven as the engine drives it, on a modelled worker."""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from core.interfaces import Scheduler
from core.sampling.params import SamplingParams
from core.scheduling import QueueScheduler
from core.testing.modelled_worker import VOCAB, ModelledWorker, alone
from core.types import Limits, Request, StepOutput, StepPlan

SITUATIONS = (
    "hits",
    "evictions",
    "preemptions",
    "readmitted",
    "chunks",
    "mixed",
    "over-runs",
    "rows reused at once",
    "aborts",
    "failures",
    "stop",
    "length",
    "error",
)
"""What traffic counts, and must have brought about for a test on it to mean something."""

COUNTERS = (
    *("running", "waiting", "preemptions"),
    *("pages_total", "pages_free", "pages_cached", "pages_owned"),
    *("prefix_queries", "prefix_hits"),
)
"""What `Scheduler.statistics` gives at least."""

STEMS = ((1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3), (1, 2, 2, 2, 1, 1, 1, 1, 3, 3, 3, 3))


@cache
def sampling(min_tokens: int, prompt_logprobs: int | None) -> SamplingParams:
    return SamplingParams(min_tokens=min_tokens, prompt_logprobs=prompt_logprobs)


@dataclass
class Setting:
    """One world: an engine's sizes, and what may go wrong in it."""

    seed: int
    scheduler: type[Scheduler]
    page_size: int = 2
    pages: int = 12
    budget: int = 8
    rows: int = 4
    requests: int = 4
    depth: int = 1  # plans that may be made before the result of an older one is taken in
    prefix_cache: bool = True
    ids_at_most: int = 1
    options: dict[str, object] = field(default_factory=dict)
    aborts: float = 0.0  # probability a step
    errors: float = 0.0
    failures: float = 0.0
    resets: float = 0.0

    @classmethod
    def draw(cls, seed: int, scheduler: type[Scheduler]) -> Setting:
        """A world for a scheduler. One that is no QueueScheduler gets what an engine does today."""
        rng = random.Random(seed)
        page_size = rng.randint(1, 5)
        troubled = rng.random()
        setting = cls(
            seed=seed,
            scheduler=scheduler,
            page_size=page_size,
            pages=rng.randint(4, max(6, 24 // page_size)),
            budget=rng.randint(3, 16),
            rows=rng.randint(1, 6),
            requests=rng.randint(2, 7),
            depth=rng.randint(0, 2),
            prefix_cache=rng.random() < 0.85,
            ids_at_most=rng.choice((1, 1, 1, 1, 1, 3)),
            options={
                "chunked_prefill": (chunked := rng.random() < 0.85),
                "max_chunk": rng.choice((0, 0, 1, 2, 4)) * chunked,  # nothing to be limited else
                "watermark": rng.choice((0.0, 0.01, 0.2)),
            },
            aborts=0.15 if rng.random() < 0.3 else 0.0,
            errors=0.05 if troubled < 0.1 else 0.0,
            failures=0.1 if 0.1 < troubled < 0.25 else 0.0,
        )
        known = scheduler.Options.__dataclass_fields__
        setting.options = {key: value for key, value in setting.options.items() if key in known}
        if not setting.queued:
            setting.depth, setting.ids_at_most = min(setting.depth, 1), 1
        return setting

    @property
    def queued(self) -> bool:
        """Whether the scheduler promises what QueueScheduler does beyond the interface."""
        return issubclass(self.scheduler, QueueScheduler)


class Traffic:
    """Requests that come, go and are driven to their end."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.rng = random.Random(setting.seed + 1)
        self.limits = Limits(
            max_num_seqs=setting.rows,
            max_num_batched_tokens=setting.budget,
            max_length=64,
            page_size=setting.page_size,
            pages=setting.pages,
            vocab_size=VOCAB,
            prefix_cache=setting.prefix_cache,
            check=True,
        )
        options: Any = setting.scheduler.Options(**setting.options)  # type: ignore[arg-type]
        options.max_num_seqs, options.max_num_batched_tokens = setting.rows, setting.budget
        self.scheduler = setting.scheduler(options, self.limits)
        self.worker = ModelledWorker(setting.rows, setting.pages, setting.page_size, setting.budget)
        self.requests = [self._request(i) for i in range(setting.requests)]
        self.to_come = deque(self.requests)
        # a cached page has no log probabilities to tell, nor what an observer asks for
        self.whole = {
            r.id for r in self.requests if r.params.prompt_logprobs is not None or not r.reads_cache
        }
        self.flights: deque[StepPlan] = deque()
        self.unaware = False  # a step has failed, and nobody has told the scheduler
        self.seen: Counter[str] = Counter()
        self.computed: dict[str, set[int]] = {r.id: set() for r in self.requests}  # positions

    def run(self) -> Counter[str]:
        """Drive everything to its end, assert that it ended right, and count what happened."""
        for _ in range(1500):
            if not (self.to_come or self.flights or self.scheduler.has_work()):
                break
            self._step()
        else:
            raise AssertionError(f"no end: {self.scheduler.statistics()}")
        for request in self.requests:
            self._check_end(request)
        numbers = self.scheduler.statistics()
        assert numbers["running"] == numbers["waiting"] == 0
        if not self.setting.queued:
            return self.seen
        assert numbers["pages_owned"] == 0
        assert numbers["pages_free"] + numbers["pages_cached"] == numbers["pages_total"]
        self.seen.update(
            hits=numbers["prefix_hits"],
            evictions=numbers["prefix_evictions"],
            preemptions=numbers["preemptions"],
            steps=numbers["steps"],
        )
        return self.seen

    def _request(self, index: int) -> Request:
        rng, setting = self.rng, self.setting
        prompt = list(rng.choice(STEMS)[: rng.randint(0, 12)])
        prompt += [rng.randint(1, 3) for _ in range(rng.randint(0, 3))] or [1]
        most = setting.pages * setting.page_size
        most += setting.queued  # it knows that the last token is never computed
        if not setting.options.get("chunked_prefill", True):
            most = min(most, setting.budget + 4)
            prompt = prompt[: setting.budget]
        prompt = prompt[: most - 1]
        limit = min(len(prompt) + rng.randint(1, 12), most)
        return Request(
            id=str(index),
            prompt=prompt,
            params=sampling(
                rng.choice((0, 0, 3)) * setting.queued, 0 if rng.random() < 0.1 else None
            ),
            stop_ids=frozenset(rng.choice(((), (0,), (0, 5, VOCAB + 3)))),
            limit=limit,
            priority=rng.randint(0, 2),
            arrival=float(index),
            salt=rng.choice((None, None, None, "", "x")),
            reads_cache=rng.random() < 0.9,
        )

    def _step(self) -> None:
        rng, setting, scheduler = self.rng, self.setting, self.scheduler
        while self.to_come and rng.random() < 0.4:
            scheduler.add(self.to_come.popleft())
        if rng.random() < setting.aborts:
            self._abort()
        if setting.resets and rng.random() < setting.resets:
            scheduler.reset_prefix_cache()
        plan = scheduler.plan()
        if plan is not None:
            self._note(plan)
            self.flights.append(plan)
            if rng.random() < setting.aborts:
                self._abort()
        while self.flights and (plan is None or len(self.flights) > setting.depth):
            self._land(self.flights.popleft())
            if plan is None:
                break

    def _abort(self) -> None:
        request = self.rng.choice(self.requests)
        again = self.setting.queued  # the engine does not finish a request twice
        if request not in self.to_come and (again or request.finish_reason is None):
            self.seen["aborts"] += request.finish_reason is None
            before = request.finish_reason
            self.scheduler.finish(request, "abort")
            assert request.finish_reason == (before or "abort"), "finish did not end it"

    def _note(self, plan: StepPlan) -> None:
        for request, start, count in zip(plan.requests, plan.starts, plan.counts, strict=True):
            self.computed[request.id] |= set(range(int(start), int(start + count)))
        self.seen["chunks"] += int(np.sum((plan.counts > 1) & (plan.sample == 0)))
        self.seen["mixed"] += bool((plan.counts > 1).any() and (plan.counts == 1).any())
        self.seen["readmitted"] += sum(len(a.tokens) > a.prompt_length for a in plan.admitted)
        self.seen["rows reused at once"] += len(
            set(plan.released.tolist()) & {a.row for a in plan.admitted}
        )

    def _land(self, plan: StepPlan) -> None:
        """Executed as late as can be, so that a plan that changes after it was made shows."""
        if self.rng.random() < self.setting.failures:
            return self._fail(plan)
        output = self.worker.execute(plan, self.setting.ids_at_most)
        if self.rng.random() < self.setting.errors:
            output.errors[self.rng.randrange(len(plan.rows))] = "no token is possible"
        sentences = {plan.requests[b]: text for b, text in output.errors.items()}
        before = {r: len(r.output) for r in plan.requests}
        ended = {r for r in plan.requests if r.finish_reason is not None}
        self.seen["over-runs"] += len(ended)
        news = self.scheduler.update(plan, output)
        if self.unaware:  # from now on the scheduler knows of the failure
            self.unaware = False
            self.worker.broken_until = self.flights[-1].number if self.flights else plan.number
        assert len(set(news)) == len(news)
        for request in plan.requests:
            changed = len(request.output) > before[request] or request.finish_reason == "error"
            assert (request in news) == (changed and request not in ended)
            if request.finish_reason == "error" and request not in ended:
                assert request.error == sentences[request], "its error is not StepOutput's"
        return None

    def _fail(self, plan: StepPlan) -> None:
        """The ways in which an engine may tell that a step came to nothing."""
        self.seen["failures"] += 1
        last = self.flights[-1].number if self.flights else plan.number
        self.worker.fail(plan, last)
        scheduler, way = self.scheduler, self.rng.choice(("retry", "update", "finish", "silent"))
        if not self.setting.queued:
            return self._end_all(plan)
        if way != "silent":
            scheduler.drop(plan.requests)
        if way == "update":
            errors = dict.fromkeys(range(len(plan.rows)), "the step failed")
            scheduler.update(plan, StepOutput(plan.number, np.zeros(0, np.int32), errors=errors))
        elif way in ("finish", "silent"):
            for request in plan.requests:
                scheduler.finish(request, "error")
            if way == "silent":
                self.unaware, self.worker.broken_until = True, 2**31
            scheduler.reset_prefix_cache()

    def _end_all(self, plan: StepPlan) -> None:
        """What the engine does about a step that failed."""
        self.scheduler.drop(plan.requests)
        for request in plan.requests:
            if request.finish_reason is None:
                self.scheduler.finish(request, "error")

    def _check_end(self, request: Request) -> None:
        output, reason = alone(request)
        if request.finish_reason in ("stop", "length"):
            assert request.output == output, f"request {request.id} got other tokens than alone"
            assert request.finish_reason == reason
            assert request.stop_reason == (output[-1] if reason == "stop" else None)
            assert request.started > 0, f"request {request.id} was never admitted, as it says"
            if request.id in self.whole:
                missing = set(range(len(request.prompt))) - self.computed[request.id]
                assert not missing, f"request {request.id}: its prompt was not computed"
        else:
            assert request.finish_reason in ("abort", "error")
            assert request.output == output[: len(request.output)]
        if self.setting.queued:
            assert request.row == -1
            assert not request.pages
        self.seen[request.finish_reason] += 1
        self.seen["cached"] += request.cached
