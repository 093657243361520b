"""One step after another: budget, chunks, admission, rows, and what the columns of a plan say."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from core.errors import UserError
from core.testing.modelled_worker import alone, columns_of
from core.types import StepOutput
from plugins.scheduling.fcfs import FirstComeFirstServed
from tests.small_engine import SmallEngine, make_limits, make_request, share

DEPTHS = pytest.mark.parametrize("depth", [0, 1, 2])


def test_a_plan_says_what_a_worker_needs():
    engine = SmallEngine(max_num_batched_tokens=7)
    request = make_request("a", [1, 2, 3, 4, 5, 6, 1, 2, 3], stop_ids=frozenset({6}), seed=5)
    engine.add(request)
    first, second, third = engine.plan(), engine.plan(), engine.plan()
    assert first is not None and second is not None and third is not None  # noqa: PT018
    assert [p.number for p in (first, second, third)] == [0, 1, 2]
    (new,) = first.admitted
    assert (new.row, new.request_id, new.prompt_length, new.seed) == (request.row, "a", 9, 5)
    assert new.tokens.tolist() == request.prompt
    assert new.tokens.dtype == np.int32
    assert (new.params, new.stop_ids) == (request.params, request.stop_ids)
    assert [(p.starts[0], p.counts[0], p.sample[0]) for p in (first, second, third)] == [
        (0, 7, 0),
        (7, 2, 1),
        (9, 1, 1),
    ]
    assert (first.page_starts[0], first.page_counts[0]) == (0, 3)
    assert first.pages.tolist() == request.pages
    assert second.page_counts[0] == third.page_counts[0] == 0
    assert second.admitted == [] and not len(second.released)  # noqa: PT018


@DEPTHS
def test_running_requests_get_a_token_in_every_step_while_prompts_arrive(depth: int):
    engine = SmallEngine(max_num_batched_tokens=8, depth=depth)
    first = make_request("first", 3, new=30)
    engine.add(first)
    engine.step()
    others = [make_request(f"long{i}", 40) for i in range(3)]
    engine.add(*others)
    steps = 0
    while not all(r.finish_reason for r in others):
        plan = engine.step()
        if first.finish_reason is None and len(first) + depth < first.limit:
            assert share(plan, first) == 1
            steps += 1
        assert plan is None or plan.counts.sum() <= 8
    assert steps >= 15


def test_a_step_is_filled_up_to_its_budget():
    engine = SmallEngine(max_num_batched_tokens=10)
    a, b, c = make_request("a", 4), make_request("b", 5), make_request("c", 6)
    engine.add(a, b, c)
    plan = engine.plan()
    assert [share(plan, r) for r in (a, b, c)] == [4, 5, 1]
    plan = engine.plan()
    assert [share(plan, r) for r in (a, b, c)] == [1, 1, 5]


def test_rows_with_one_token_come_first():
    engine = SmallEngine(max_num_batched_tokens=10)
    a, b, c = make_request("a", 8), make_request("b", 1), make_request("c", 4)
    engine.add(a, b, c)
    plan = engine.plan()
    assert plan is not None
    assert plan.counts.tolist() == [1, 1, 8]
    assert plan.requests == [b, c, a]
    assert plan.rows.tolist() == [b.row, c.row, a.row]
    assert plan.pages.tolist() == b.pages + c.pages + a.pages


def test_never_more_requests_run_than_the_budget_has_tokens():
    engine = SmallEngine(max_num_batched_tokens=3, max_num_seqs=8)
    requests = [make_request(str(i), 2, new=5) for i in range(6)]
    engine.add(*requests)
    for plan in engine.run():
        assert len(plan.rows) <= 3
        running = [r for r in requests if r in plan.requests]
        assert all(share(plan, r) >= 1 for r in running)
    assert all(r.output == alone(r)[0] for r in requests)


@pytest.mark.parametrize("max_chunk", [0, 4])
def test_with_max_chunk_short_prompts_do_not_wait_for_a_long_one(max_chunk: int):
    engine = SmallEngine(max_num_batched_tokens=8, options={"max_chunk": max_chunk})
    long = make_request("long", 200)
    short = [make_request(f"s{i}", 6) for i in range(3)]
    engine.add(long, *short)
    while not long.output:
        engine.step()
    assert all(bool(r.output) == (max_chunk > 0) for r in short)


def test_without_chunked_prefill_prompts_are_not_split():
    engine = SmallEngine(max_num_batched_tokens=10, options={"chunked_prefill": False})
    requests = [make_request(str(i), size) for i, size in enumerate((6, 6, 10, 3))]
    engine.add(*requests)
    for plan in engine.run():
        for request, start, count in zip(plan.requests, plan.starts, plan.counts, strict=True):
            assert count == 1 or start + count >= len(request.prompt)
    assert all(r.output == alone(r)[0] for r in requests)


def test_without_chunked_prefill_a_request_that_outgrew_the_budget_still_comes_back():
    engine = SmallEngine(
        max_num_batched_tokens=6, pages=8, page_size=2, options={"chunked_prefill": False}
    )
    requests = [make_request(str(i), 4, new=7) for i in range(2)]
    engine.add(*requests)
    plans = engine.run()
    assert any(len(a.tokens) > 6 for plan in plans for a in plan.admitted)
    assert all(r.output == alone(r)[0] for r in requests)


@pytest.mark.parametrize(
    ("size", "new", "options", "message"),
    [
        (0, 4, {}, "no tokens"),
        (5, 0, {}, "leaves no room below the limit of 5"),
        (64, 20, {}, "84 tokens need 21 pages of the cache, which has 20"),
        (17, 4, {"chunked_prefill": False}, "over scheduler.max_num_batched_tokens, 16"),
    ],
)
def test_a_request_that_could_never_run_is_refused(size, new, options, message):
    engine = SmallEngine(pages=20, max_num_batched_tokens=16, options=options)
    with pytest.raises(UserError, match=f"request a: .*{message}"):
        engine.add(make_request("a", size, new))
    assert not engine.scheduler.has_work()


def test_a_request_as_large_as_the_whole_cache_runs():
    engine = SmallEngine(pages=20)
    request = make_request("a", 70, new=11)
    engine.add(request)
    engine.run()
    assert request.output == alone(request)[0]


@pytest.mark.parametrize(
    "options",
    [
        {"max_chunk": -1},
        {"watermark": 1.0},
        {"watermark": -0.1},
        {"max_chunk": 4, "chunked_prefill": False},
    ],
)
def test_impossible_options_are_refused(options):
    with pytest.raises(UserError, match=next(iter(options))):
        FirstComeFirstServed(FirstComeFirstServed.Options(**options), make_limits())


@DEPTHS
def test_rows_are_stable_and_their_release_is_told_once_even_when_reused_at_once(depth: int):
    engine = SmallEngine(max_num_seqs=2, depth=depth)
    requests = [make_request(str(i), 3, new=1 + i % 3) for i in range(8)]
    engine.add(*requests)
    rows: dict[str, int] = {}
    reused = False
    for plan in engine.run():  # the worker asserts that no row is given away before its release
        for request, row in zip(plan.requests, plan.rows.tolist(), strict=True):
            assert rows.setdefault(request.id, row) == row
            assert 0 <= row < 2
        reused |= bool(set(plan.released.tolist()) & {a.row for a in plan.admitted})
    assert reused


def test_a_plan_does_not_change_after_it_was_made():
    engine = SmallEngine(max_num_batched_tokens=6, pages=12, page_size=2, depth=2)
    engine.add(*[make_request(str(i), 3 + i, new=12) for i in range(4)])
    kept = []
    for _ in range(60):
        if (plan := engine.step()) is not None:
            kept.append((plan, copy.deepcopy(columns_of(plan)), list(plan.requests)))
    assert len(kept) > 20
    for plan, columns, requests in kept:
        assert plan.requests == requests
        for now, then in zip(columns_of(plan), columns, strict=True):
            assert now.tolist() == then.tolist()


def test_the_requests_that_update_returns_belong_to_the_caller():
    engine = SmallEngine(depth=0)
    request = make_request("a", 3)
    engine.add(request)
    plan = engine.plan()
    assert plan is not None
    engine.land().clear()
    assert plan.requests == [request]
    engine.run()
    assert request.output == alone(request)[0]


def test_nothing_is_planned_past_the_last_token_a_request_may_have():
    """Its length is known beforehand, so only stop ids cause an over-run."""
    engine = SmallEngine(depth=2)
    request = make_request("a", 3, new=4)
    engine.add(request)
    assert sum(share(plan, request) for plan in engine.run()) == 3 + 3


def test_plan_gives_none_while_everything_is_on_its_way():
    engine = SmallEngine()
    request = make_request("a", 3, new=2)
    engine.add(request)
    assert engine.plan() is not None
    assert engine.plan() is not None
    assert engine.plan() is None
    assert engine.scheduler.has_work()
    engine.land()
    assert engine.plan() is None
    engine.land()
    assert not engine.scheduler.has_work()


def test_nobody_reads_what_a_decoding_step_writes():
    """Where all requests bring one token, a layer may read its cache while others write theirs."""
    engine = SmallEngine(page_size=1, pages=200)
    before = make_request("before", list(range(10)), new=1)
    engine.add(before)
    engine.run()
    same = [make_request("a", [*range(10), 60]), make_request("b", [*range(10), 60, 61])]
    engine.add(*same)
    plan = engine.plan()
    places = list(zip(plan.requests, plan.starts.tolist(), strict=True))
    written = {request.pages[start] for request, start in places}
    read = {page for request, start in places for page in request.pages[:start]}
    assert int(plan.counts.max()) > 1 or not written & read
    engine.run()
    assert same[1].cached == 10


def test_standing_still_is_an_error_that_tells_the_state():
    class Strict(FirstComeFirstServed):
        def _admit(self, left):
            return []

    engine = SmallEngine(Strict)
    engine.add(make_request("stuck", 3))
    with pytest.raises(RuntimeError, match=r"running 0, waiting 1, .*first in the queue: stuck"):
        engine.plan()


def test_statistics_have_every_counter():
    engine = SmallEngine(max_num_seqs=2)
    engine.add(*[make_request(str(i), 5, new=3) for i in range(3)])
    engine.step()
    numbers = engine.scheduler.statistics()
    assert {k: numbers[k] for k in ("running", "waiting", "pages_total", "pages_owned")} == {
        "running": 2,
        "waiting": 1,
        "pages_total": 64,
        "pages_owned": 4,
    }
    plans = engine.run()
    numbers = engine.scheduler.statistics()
    assert numbers["steps"] == 1 + len(plans)
    assert numbers["planned_tokens"] == 10 + sum(int(p.counts.sum()) for p in plans) == 3 * 7
    assert numbers["preemptions"] == numbers["prefix_evictions"] == 0


def test_ids_beyond_the_vocabulary_do_no_harm_in_stop_ids():
    engine = SmallEngine()
    request = make_request("a", 3, stop_ids=frozenset({-1, 10**9}))
    engine.add(request)
    engine.run()
    assert request.finish_reason == "length"


def test_results_must_come_in_order():
    engine = SmallEngine()
    engine.add(make_request("a", 3))
    engine.plan()
    late = StepOutput(7, np.zeros(1, np.int32))
    with pytest.raises(AssertionError):
        engine.scheduler.update(engine.flights[0], late)
