"""How results end requests, and what becomes of results whose request is no longer there."""

from __future__ import annotations

import numpy as np
import pytest

from core.testing.modelled_worker import alone
from core.types import Request, StepOutput, StepPlan
from tests.small_engine import SmallEngine, make_request, share

DEPTHS = pytest.mark.parametrize("depth", [0, 1, 2])


def answer(plan: StepPlan, *ids: int, **fields) -> StepOutput:
    return StepOutput(plan.number, np.array(ids, np.int32), **fields)


def planned(engine: SmallEngine) -> StepPlan:
    plan = engine.scheduler.plan()
    assert plan is not None
    return plan


@DEPTHS
def test_a_stop_id_ends_a_request_and_is_its_last_token(depth: int):
    whole = alone(make_request("a", 5, new=20))[0]
    stop = whole[7]
    at = whole.index(stop)
    engine = SmallEngine(depth=depth)
    request = make_request("a", 5, new=20, stop_ids=frozenset({stop}))
    engine.add(request)
    plans = engine.run()
    assert request.output == whole[: at + 1]
    assert (request.finish_reason, request.stop_reason) == ("stop", stop)
    computed = sum(share(plan, request) for plan in plans)
    assert computed == 5 + at + depth, "it over-runs by the steps that were on their way"
    assert engine.scheduler.statistics()["pages_owned"] == 0


@DEPTHS
def test_no_stop_id_counts_before_min_tokens(depth: int):
    every_id = frozenset(range(7))
    engine = SmallEngine(depth=depth)
    request = make_request("a", 5, new=20, stop_ids=every_id, min_tokens=4)
    engine.add(request)
    engine.run()
    assert len(request.output) == 4
    assert request.finish_reason == "stop"


def test_a_stop_id_at_the_limit_is_a_stop():
    engine = SmallEngine()
    request = make_request("a", 5, new=3, stop_ids=frozenset(alone(make_request("a", 5))[0][2:3]))
    request.params.min_tokens = 3
    engine.add(request)
    engine.run()
    assert (len(request.output), request.finish_reason) == (3, "stop")


def test_a_stop_id_of_one_request_does_not_end_another():
    engine = SmallEngine()
    one = make_request("a", [1, 2, 3], new=8, stop_ids=frozenset(range(7)))
    other = make_request("b", [1, 2, 3], new=8)
    engine.add(one, other)
    engine.run()
    assert (len(one.output), len(other.output)) == (1, 8)


def test_several_ids_a_step_are_appended_up_to_the_stop():
    engine = SmallEngine()
    a, b = make_request("a", 3, new=9, stop_ids=frozenset({5})), make_request("b", 3, new=9)
    engine.add(a, b)
    plan = planned(engine)
    counts = np.array([4, 2], np.int32)
    news = engine.scheduler.update(plan, answer(plan, 1, 5, 6, 6, 2, 3, counts=counts))
    assert set(news) == {a, b}
    assert (a.output, a.finish_reason, a.stop_reason) == ([1, 5], "stop", 5)
    assert (b.output, b.finish_reason) == ([2, 3], None)
    plan = planned(engine)
    # what the worker did not compute itself is computed now
    assert (plan.starts.tolist(), plan.counts.tolist(), plan.sample.tolist()) == ([3], [2], [1])


def test_several_ids_a_step_are_cut_at_the_limit():
    engine = SmallEngine()
    request = make_request("a", 3, new=2)
    engine.add(request)
    plan = planned(engine)
    engine.scheduler.update(plan, answer(plan, 1, 2, 3, counts=np.array([3], np.int32)))
    assert (request.output, request.finish_reason) == ([1, 2], "length")


def test_after_several_ids_a_request_waits_until_nothing_is_on_its_way():
    engine = SmallEngine()
    request, other = make_request("a", 3, new=9), make_request("b", 3, new=9)
    engine.add(request, other)
    first, second = planned(engine), planned(engine)
    update = engine.scheduler.update
    update(first, answer(first, 1, 2, 3, 4, counts=np.array([3, 1], np.int32)))
    third = planned(engine)
    assert (share(third, request), share(third, other)) == (0, 1)
    # the second step was planned for the token after the first id, which was not the last one
    assert update(second, answer(second, 5, counts=np.array([0, 1], np.int32))) == [other]
    fourth = planned(engine)
    at = fourth.requests.index(request)
    assert (fourth.starts[at], fourth.counts[at], fourth.sample[at]) == (4, 2, 1)


def test_a_step_that_gives_no_id_is_made_again():
    engine = SmallEngine()
    request = make_request("a", 3, new=9)
    engine.add(request)
    first, second = planned(engine), planned(engine)
    nothing = np.array([0], np.int32)
    assert engine.scheduler.update(first, answer(first, counts=nothing)) == []
    assert engine.scheduler.plan() is None
    engine.scheduler.update(second, answer(second, counts=nothing))
    third = planned(engine)
    # the second step computed a token that never came
    assert (third.starts.tolist(), third.counts.tolist(), third.sample.tolist()) == ([2], [1], [1])


def test_an_error_ends_its_request_alone_and_its_content_is_not_found_again():
    engine = SmallEngine()
    bad, good = make_request("bad", list(range(9))), make_request("good", 9)
    engine.add(bad, good)
    plan = planned(engine)
    output = engine.worker.execute(plan)
    output.errors[plan.requests.index(bad)] = "no token is possible"
    assert set(engine.scheduler.update(plan, output)) == {bad, good}
    assert (bad.finish_reason, bad.error, bad.output) == ("error", "no token is possible", [])
    engine.run()
    assert good.output == alone(good)[0]
    again = make_request("again", bad.prompt)
    engine.add(again)
    engine.run()
    assert again.cached == 0


def test_an_error_of_a_prompt_that_is_not_sampled_yet_ends_it():
    engine = SmallEngine(max_num_batched_tokens=4)
    request = make_request("a", 9)
    engine.add(request)
    plan = planned(engine)
    assert plan.sample.tolist() == [0]
    assert engine.scheduler.update(plan, answer(plan, errors={0: "broken"})) == [request]
    assert request.finish_reason == "error"
    assert not engine.scheduler.has_work()


@DEPTHS
@pytest.mark.parametrize("when", ["waiting", "planned", "computed", "in flight", "decoding"])
def test_a_request_may_be_aborted_at_any_moment_and_twice(when: str, depth: int):
    engine = SmallEngine(depth=depth, max_num_seqs=2, max_num_batched_tokens=6)
    keep = make_request("keep", 4, new=12)
    request = make_request("abort", 8, new=12)
    if when == "waiting":
        engine.add(keep, make_request("other", 4, new=12))
        engine.step()
    engine.add(*([request] if when == "waiting" else [keep, request]))
    for _ in range({"waiting": 0, "planned": 1, "computed": 2, "in flight": 3}.get(when, 7)):
        engine.step()
    had = list(request.output)
    for _ in range(2):
        engine.scheduler.finish(request, "abort")
    assert (request.row, request.pages, request.finish_reason) == (-1, [], "abort")
    engine.run()
    assert request.output == had, "nothing is appended after the end"
    assert keep.output == alone(keep)[0]
    assert engine.scheduler.statistics()["pages_owned"] == 0


def test_the_reason_of_the_engine_is_kept():
    engine = SmallEngine()
    request = make_request("a", 4, new=9)
    engine.add(request)
    for _ in range(3):
        engine.step()
    engine.scheduler.finish(request, "stop")
    engine.scheduler.finish(request, "abort")
    engine.run()
    assert request.finish_reason == "stop"


def test_pages_and_row_of_an_aborted_request_serve_the_next_plan():
    engine = SmallEngine(pages=4, max_num_seqs=1, prefix_cache=False)
    old, new = make_request("old", 12, new=4), make_request("new", 12, new=4)
    engine.add(old, new)
    engine.plan()
    engine.plan()
    row, pages = old.row, list(old.pages)
    engine.scheduler.finish(old, "abort")
    plan = engine.plan()
    assert plan is not None
    assert plan.released.tolist() == [row] == [a.row for a in plan.admitted]
    assert set(new.pages) & set(pages)
    engine.run()
    assert new.output == alone(new)[0]


def finished_alone(request: Request) -> bool:
    return (request.output, request.finish_reason) == alone(request)


def test_a_preempted_request_keeps_the_token_that_is_on_its_way():
    engine = SmallEngine(pages=5, page_size=2, depth=2)
    first, second = make_request("a", 3, new=5, arrival=1), make_request("b", 3, new=5, arrival=2)
    engine.add(first, second)
    while not second.preemptions:
        assert engine.plan() is not None
    owed = len(engine.flights) - 1
    known = len(second)
    assert owed >= 1
    # not all its tokens are known, so it cannot come back, though it is the first in the queue
    engine.scheduler.finish(first, "abort")
    assert engine.plan() is None
    while engine.flights:
        engine.land()
    assert len(second) == known + owed
    plan = engine.plan()
    assert plan is not None
    assert plan.admitted[0].tokens.tolist() == second.prompt + second.output
    engine.run()
    assert finished_alone(second)


def test_a_request_can_end_while_it_waits_to_come_back():
    whole = alone(make_request("b", 3, new=5))[0]
    engine = SmallEngine(pages=5, page_size=2, depth=2)
    first = make_request("a", 3, new=5, arrival=1)
    second = make_request("b", 3, new=5, arrival=2, stop_ids=frozenset(whole[:1]))
    engine.add(first, second)
    while not second.preemptions:
        assert engine.plan() is not None
    engine.land()
    assert (second.finish_reason, second.output) == ("stop", whole[:1])
    engine.run()
    assert second.output == whole[:1]
    assert finished_alone(first)


def test_a_request_that_comes_back_finds_its_own_pages():
    engine = SmallEngine(pages=8, page_size=2, max_num_batched_tokens=32)
    first, second = make_request("a", 7, new=8, arrival=1), make_request("b", 7, new=8, arrival=2)
    engine.add(first, second)
    hits = 0
    for plan in engine.run():
        for new in plan.admitted:
            start = plan.starts[plan.requests.index(second)] if new.request_id == "b" else 0
            hits += int(start) if second.preemptions else 0
    assert second.preemptions >= 1
    assert hits > 0
    assert second.cached == 0, "only what the cache gave at first counts here"
    assert finished_alone(first)
    assert finished_alone(second)
