"""What a scheduler costs on the host: microseconds to plan a decode step and to take it in."""

from __future__ import annotations

import gc
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from core.sampling.params import SamplingParams
from core.types import Limits, Request, StepOutput

if TYPE_CHECKING:
    from core.interfaces import Scheduler
    from core.types import StepPlan

VOCAB = 151_936


def measure_host(
    scheduler: type[Scheduler], running: int, *, page_size: int = 16, steps: int = 300
) -> dict[str, float]:
    """Time `steps` steps of `running` decoding requests, in the engine's order: plan the next
    step, then take in the result of the one before.

    Prompts have different lengths, so some requests need a page in every step. -> running,
    page_size, and in microseconds the medians plan_us, update_us and total_us, and total_p99_us.
    """
    length = 512 + steps
    limits = Limits(
        max_num_seqs=running,
        max_num_batched_tokens=max(8192, running),
        max_length=length,
        page_size=page_size,
        pages=running * -(-length // page_size),
        vocab_size=VOCAB,
    )
    rng = np.random.default_rng(0)
    subject = scheduler(scheduler.Options(), limits)
    params = SamplingParams(max_tokens=None)
    for index in range(running):
        prompt = rng.integers(100, VOCAB, int(rng.integers(100, 400))).tolist()
        stops = frozenset((1, 2))
        subject.add(Request(str(index), prompt, params, stop_ids=stops, limit=length))

    def result(plan: StepPlan) -> StepOutput:
        ids = rng.integers(100, VOCAB, int(plan.sample.sum()), dtype=np.int32)
        return StepOutput(plan.number, ids)

    plan = _planned(subject)
    while len(plan.rows) < running or plan.counts.max() > 1:
        subject.update(plan, result(plan))
        plan = _planned(subject)
    planning, updating = np.zeros(steps), np.zeros(steps)
    collecting = gc.isenabled()
    gc.disable()  # as the engine's objects are frozen, so that no collection visits them
    try:
        for step in range(steps):
            output = result(plan)
            start = perf_counter()
            following = _planned(subject)
            middle = perf_counter()
            subject.update(plan, output)
            end = perf_counter()
            planning[step], updating[step] = middle - start, end - middle
            plan = following
    finally:
        if collecting:
            gc.enable()
    total = planning + updating
    return {
        "running": running,
        "page_size": page_size,
        "plan_us": float(np.median(planning)) * 1e6,
        "update_us": float(np.median(updating)) * 1e6,
        "total_us": float(np.median(total)) * 1e6,
        "total_p99_us": float(np.percentile(total, 99)) * 1e6,
    }


def _planned(scheduler: Scheduler) -> StepPlan:
    plan = scheduler.plan()
    assert plan is not None, "nothing to plan while requests decode"
    return plan
