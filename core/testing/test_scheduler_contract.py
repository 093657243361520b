"""What every scheduler must do; run for each `--scheduler`, on a worker that has no model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.interfaces import Scheduler
from core.testing.traffic import COUNTERS, Setting, Traffic
from core.types import StepPlan

Kind = type[Scheduler]

WORLDS, TIMES = 8, 25  # worlds a test, tests


def run(setting: Setting) -> Traffic:
    """Drive one world to its end; a failure names the world."""
    traffic = Traffic(setting)
    try:
        traffic.run()
    except Exception as error:
        error.add_note(f"in the world {setting}")
        raise
    return traffic


@pytest.mark.parametrize("block", range(TIMES))
def test_requests_get_the_tokens_that_they_would_get_alone(scheduler: Kind, block: int) -> None:
    """Chunks, evictions, preemptions, aborts, errors, failed steps, results that come late."""
    for seed in range(block * WORLDS, (block + 1) * WORLDS):
        run(Setting.draw(1_000_000 + seed, scheduler))


@pytest.mark.parametrize("depth", [0, 1])
def test_steps_may_be_planned_ahead(scheduler: Kind, depth: int) -> None:
    for seed in range(20):
        run(Setting(seed, scheduler, depth=depth, aborts=0.1))


@pytest.mark.parametrize("depth", [0, 1])
def test_the_smallest_engine_works(scheduler: Kind, depth: int) -> None:
    """One row, one token a step, and a cache for one request."""
    for seed in range(10):
        run(Setting(seed, scheduler, 1, 16, budget=1, rows=1, depth=depth))
        run(Setting(seed, scheduler, 4, 4, budget=3, rows=6, depth=depth))


def test_more_rows_than_the_budget_has_tokens(scheduler: Kind) -> None:
    for seed in range(10):
        run(Setting(seed, scheduler, pages=60, budget=3, rows=12, requests=16))


def test_nobody_starves_in_a_crowd(scheduler: Kind) -> None:
    for seed in range(3):
        run(Setting(seed, scheduler, pages=10, budget=6, requests=60))


def test_cached_pages_may_be_forgotten_at_any_time(scheduler: Kind) -> None:
    for seed in range(20):
        run(Setting(seed, scheduler, resets=0.3, aborts=0.05))


def test_without_a_prefix_cache_nothing_is_shared(scheduler: Kind) -> None:
    for seed in range(10):
        traffic = run(Setting(seed, scheduler, prefix_cache=False))
        assert all(request.cached == 0 for request in traffic.requests)


def test_errors_end_their_request_alone(scheduler: Kind) -> None:
    seen = 0
    for seed in range(20):
        traffic = run(Setting(seed, scheduler, errors=0.15))
        seen += sum(request.finish_reason == "error" for request in traffic.requests)
    assert seen


def test_every_request_can_be_aborted(scheduler: Kind) -> None:
    """While it waits, while it runs, while its step is in flight."""
    for seed in range(20):
        run(Setting(seed, scheduler, aborts=0.6, depth=1))


def test_without_requests_there_is_no_plan(scheduler: Kind) -> None:
    traffic = Traffic(Setting(0, scheduler))
    idle = traffic.scheduler
    assert not idle.has_work()
    assert idle.plan() is None
    numbers = idle.statistics()
    assert numbers["running"] == numbers["waiting"] == 0


def test_its_counters_are_those_that_others_read(scheduler: Kind) -> None:
    """A server's `/metrics`, dashboards, and plugins that watch an engine."""
    traffic = Traffic(Setting(3, scheduler, aborts=0.1))
    plan = traffic.scheduler.plan

    def counted() -> StepPlan | None:
        numbers = traffic.scheduler.statistics()
        missing = [name for name in COUNTERS if type(numbers.get(name)) is not int]
        assert not missing, f"statistics() lacks {', '.join(missing)}"
        pages = [numbers[f"pages_{kind}"] for kind in ("free", "cached", "owned")]
        assert min(pages) >= 0
        assert sum(pages) == numbers["pages_total"] == traffic.limits.pages
        assert numbers["prefix_hits"] <= numbers["prefix_queries"]
        return plan()

    traffic.scheduler.plan = counted  # type: ignore[method-assign]
    traffic.run()
    counted()


def test_its_options_hold_the_sizes_of_an_engine(scheduler: Kind) -> None:
    """They are read before there is a scheduler, to size the tables of every worker."""
    options = scheduler.Options()
    assert options.max_num_seqs >= 1
    assert options.max_num_batched_tokens >= 1


def test_equal_traffic_gives_equal_plans(scheduler: Kind) -> None:
    """So that a run can be repeated: nothing depends on the time, on hashes or on chance."""

    def plans(setting: Setting) -> list[tuple[list[int], ...]]:
        traffic = Traffic(setting)
        listed: list[tuple[list[int], ...]] = []
        plan = traffic.scheduler.plan

        def noted() -> object:
            if (made := plan()) is not None:
                listed.append((made.rows.tolist(), made.counts.tolist(), made.pages.tolist()))
            return made

        traffic.scheduler.plan = noted  # type: ignore[method-assign, assignment]
        traffic.run()
        return listed

    setting = Setting(7, scheduler, requests=12)
    assert plans(setting) == plans(replace(setting))
