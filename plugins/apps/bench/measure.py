"""Runs a workload on an engine: the ids go in, and the times of the tokens come out."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from core.errors import UserError
from plugins.apps.bench.workloads import TEMPERATURE, Item, Workload

if TYPE_CHECKING:
    from core.llm import LLM
    from core.outputs import RequestOutput
    from core.sampling.params import SamplingParams


@dataclass
class Times:
    """When things happened in one run, in seconds; one entry a request, in the workload's order."""

    seconds: float = 0.0  # from the first request handed over to the last token taken back
    first: list[float] = field(default_factory=list)  # token, after the request's arrival
    each: list[float] = field(default_factory=list)  # of a request's later tokens, on average
    gaps: list[float] = field(default_factory=list)  # between two tokens, of all requests;
    #                                                  known when requests arrive over time


def fold(work: Workload, vocabulary: int) -> Workload:
    """The workload with ids that a smaller vocabulary has; unchanged, and so is its digest, when
    the vocabulary is large enough."""
    if all(token < vocabulary for item in work.items for token in item.prompt):
        return work
    items = [
        Item([token % vocabulary for token in item.prompt], item.output, item.arrival)
        for item in work.items
    ]
    return Workload(work.name, items, work.shared)


def run(llm: LLM, work: Workload) -> Times:
    """Run a workload once, with an empty prefix cache. UserError if a request ends early."""
    longest = llm.engine.limits.max_length
    if work.longest > longest:
        raise UserError(
            f"workload {work.name!r} has a request of {work.longest} tokens and the engine takes "
            f"{longest}. Raise model.max_length."
        )
    llm.engine.reset_prefix_cache()
    return _arriving(llm, work) if work.arrives else _waiting(llm, work)


def _params(item: Item) -> SamplingParams:
    from core.sampling.params import SamplingParams

    return SamplingParams(temperature=TEMPERATURE, max_tokens=item.output, ignore_eos=True)


def _waiting(llm: LLM, work: Workload) -> Times:
    """All requests wait at the start: one call of `generate`."""
    prompts = [{"prompt_token_ids": item.prompt} for item in work.items]
    params = [_params(item) for item in work.items]
    start = time.monotonic()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    times = Times(seconds=time.monotonic() - start)
    for item, output in zip(work.items, outputs, strict=True):
        _check(work, item, output)
        metrics = output.metrics
        assert metrics.first_token_time is not None
        assert metrics.last_token_time is not None
        times.first.append(metrics.first_token_time - metrics.arrival_time)
        if item.output > 1:
            spent = metrics.last_token_time - metrics.first_token_time
            times.each.append(spent / (item.output - 1))
    return times


def _arriving(llm: LLM, work: Workload) -> Times:
    """Each request is handed over when it arrives, and read token by token as a server would."""
    engine = llm.engine
    coming = list(reversed(work.items))
    running: dict[str, Item] = {}
    tokens: dict[str, list[float]] = {}
    times = Times()
    start = time.monotonic()
    while coming or running:
        while coming and coming[-1].arrival <= time.monotonic() - start:
            item = coming.pop()
            id = engine.add(item.prompt, _params(item), live=True)
            running[id], tokens[id] = item, []
        if not running:
            time.sleep(max(0.0, coming[-1].arrival - (time.monotonic() - start)))
            continue
        outputs = engine.step()
        now = time.monotonic() - start
        for output in outputs:
            seen = tokens[output.request_id]
            seen += [now] * (len(output.outputs[0].token_ids) - len(seen))
            if output.finished:
                item = running.pop(output.request_id)
                _check(work, item, output)
                times.first.append(seen[0] - item.arrival)
                if item.output > 1:
                    times.each.append((seen[-1] - seen[0]) / (item.output - 1))
                times.gaps += [b - a for a, b in pairwise(seen)]
    times.seconds = time.monotonic() - start
    return times


def _check(work: Workload, item: Item, output: RequestOutput) -> None:
    answer = output.outputs[0]
    if len(answer.token_ids) != item.output:
        reason = answer.error or f"it ended by {answer.finish_reason!r}"
        raise UserError(
            f"workload {work.name!r}: request {output.request_id} made {len(answer.token_ids)} of "
            f"{item.output} tokens: {reason}."
        )
