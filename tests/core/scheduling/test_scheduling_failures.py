"""A step that failed: what it should have written is nowhere used."""

from __future__ import annotations

import numpy as np
import pytest

from core.testing.modelled_worker import alone
from core.types import Request, StepOutput, StepPlan
from tests.small_engine import SmallEngine, make_request

PROMPT = list(range(1, 14))


def failed(engine: SmallEngine) -> StepPlan:
    """The oldest step breaks down."""
    plan = engine.flights.popleft()
    last = engine.flights[-1].number if engine.flights else plan.number
    engine.worker.fail(plan, last)
    return plan


def right(request: Request) -> bool:
    return (request.output, request.finish_reason) == alone(request)


def reader_in_flight() -> tuple[SmallEngine, Request, Request]:
    """One request fills pages in a step, another reads them in the next; both are on their way."""
    engine = SmallEngine()
    writer, reader = make_request("w", PROMPT), make_request("r", PROMPT)
    engine.add(writer)
    engine.plan()
    engine.add(reader)
    engine.plan()
    assert reader.cached == 12
    return engine, writer, reader


def test_dropped_requests_and_their_readers_are_computed_anew():
    engine, writer, reader = reader_in_flight()
    engine.scheduler.drop(failed(engine).requests)
    assert engine.scheduler.statistics()["waiting"] == 2
    engine.run()
    assert right(writer)
    assert right(reader)


def test_an_error_on_its_way_to_a_request_that_was_dropped_is_ignored():
    """Such as NaN, which the reader of pages that were never written comes to."""
    engine, writer, reader = reader_in_flight()
    engine.scheduler.drop(failed(engine).requests)
    plan = failed(engine)
    errors = {plan.requests.index(reader): "its logits are NaN"}
    output = StepOutput(plan.number, np.zeros(2, np.int32), errors=errors)
    assert engine.scheduler.update(plan, output) == []
    engine.run()
    assert right(writer)
    assert right(reader)


def test_a_result_that_never_came_counts_as_a_failure():
    engine, writer, reader = reader_in_flight()
    for request in failed(engine).requests:
        engine.scheduler.finish(request, "error")
    engine.land()
    engine.run()
    assert writer.output == []
    assert right(reader)


def test_what_an_aborted_reader_made_of_lost_pages_is_not_found():
    engine = SmallEngine()
    writer, reader = make_request("w", PROMPT), make_request("r", [*PROMPT, *range(5, 15)])
    engine.add(writer)
    engine.plan()
    engine.add(reader)
    engine.plan()
    engine.scheduler.finish(reader, "abort")
    plan = failed(engine)
    engine.scheduler.drop(plan.requests)
    engine.scheduler.finish(writer, "error")
    while engine.flights:
        engine.land()
    again = [
        make_request(str(i), reader.prompt, prompt_logprobs=p) for i, p in enumerate([1, None])
    ]
    for request in again:
        engine.add(request)
        engine.run()
        assert right(request)
    assert again[1].cached == 20


def test_content_from_before_the_failure_stays():
    engine = SmallEngine()
    engine.add(make_request("old", PROMPT))
    engine.run()
    other = make_request("other", 9)
    engine.add(other)
    engine.plan()
    engine.scheduler.drop(failed(engine).requests)
    again = make_request("again", PROMPT)
    engine.add(again)
    engine.run()
    assert again.cached == 12
    assert right(other)


def test_a_preempted_reader_does_not_keep_an_id_made_of_lost_pages():
    engine = SmallEngine(pages=7, page_size=2, depth=3)
    first = make_request("a", 3, new=8, arrival=1)
    writer = make_request("w", [1, 2, 3, 4, 5], new=1, arrival=2)
    reader = make_request("r", [1, 2, 3, 4, 6], new=6, arrival=3)
    engine.add(first, writer)
    engine.plan()
    engine.add(reader)
    while not reader.preemptions:
        assert engine.plan() is not None
    assert reader.cached == 4
    engine.scheduler.drop(failed(engine).requests)
    engine.run()
    assert right(first)
    assert right(writer)
    assert right(reader)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_failures_now_and_then_only_cost_time(depth: int):
    engine = SmallEngine(depth=depth, pages=10, page_size=2, max_num_batched_tokens=6)
    requests = [make_request(str(i), PROMPT[: 4 + i], new=6, arrival=i) for i in range(4)]
    engine.add(*requests)
    for step in range(2000):
        if not (engine.scheduler.has_work() or engine.flights):
            break
        plan = engine.plan()
        if engine.flights and (plan is None or len(engine.flights) > depth):
            if step % 8 == 7:
                engine.scheduler.drop(failed(engine).requests)
            else:
                engine.land()
    assert all(map(right, requests))
