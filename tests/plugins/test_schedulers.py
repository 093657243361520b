"""The built-in schedulers, and one of somebody else's."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from core.interfaces import Scheduler
from core.registry import Registries
from core.scheduling import QueueScheduler
from core.testing.modelled_worker import alone
from core.types import Admission, Request, StepPlan
from plugins import scheduling
from plugins.scheduling.fcfs import FirstComeFirstServed
from plugins.scheduling.priority import Priority
from tests.small_engine import SmallEngine, make_request


class ShortestFirst(QueueScheduler):
    """What somebody else writes: the shortest prompt first, and the longest request makes room."""

    def order(self, request: Request) -> int:
        return len(request.prompt)

    def victim(self, running):
        return max(running, key=lambda request: (len(request), -request.computed))


class LastComeFirstServed(QueueScheduler):
    """The least that a scheduler of one's own has to say."""

    def order(self, request: Request) -> float:
        return -request.arrival


class OneAtATime(Scheduler):
    """A scheduler from nothing: one request, its whole prompt in one step, no overlap."""

    def __init__(self, options, limits):
        super().__init__(options, limits)
        self.queue, self.number, self.flying, self.left = deque(), 0, False, []

    def add(self, request):
        self.queue.append(request)

    def finish(self, request, reason):
        request.finish_reason = reason
        self.queue.remove(request)

    def plan(self):
        if not self.queue or self.flying:
            return None
        request = self.queue[0]
        new = request.computed == 0
        pages = list(range(self.limits.pages)) if new else []
        column = [np.array([x], np.int32) for x in (0, request.computed, len(request), 1)]
        column[2] -= request.computed
        tokens = np.array(request.prompt, np.int32)
        news = Admission(0, request.id, tokens, len(tokens), request.params, 0, request.stop_ids)
        plan = StepPlan(
            self.number,
            *column,
            page_starts=np.array([0], np.int32),
            page_counts=np.array([len(pages)], np.int32),
            pages=np.array(pages, np.int32),
            released=np.array(self.left, np.int32),
            admitted=[news] if new else [],
            requests=[request],
        )
        self.left, self.flying, self.number = [], True, self.number + 1
        request.computed = len(request)
        return plan

    def update(self, plan, output):
        self.flying = False
        (request,) = plan.requests
        request.output += output.ids.tolist()
        if len(request) == request.limit:
            self.finish(request, "length")
            self.left = [0]
        return [request]

    def has_work(self):
        return bool(self.queue)

    def statistics(self):
        return {"running": self.flying, "waiting": len(self.queue)}


def admissions(engine: SmallEngine) -> list[str]:
    """Ids of the requests in the order of their admission."""
    return [new.request_id for plan in engine.run() for new in plan.admitted]


def test_both_are_registered_without_being_imported():
    registries = Registries()
    scheduling.register(registries)
    assert registries.schedulers.names() == ["fcfs", "priority"]
    assert registries.schedulers.get("fcfs") is FirstComeFirstServed
    assert registries.schedulers.get("priority") is Priority


def test_first_come_first_served():
    engine = SmallEngine(FirstComeFirstServed, max_num_seqs=1)
    requests = [make_request(str(i), 3, arrival=a) for i, a in enumerate((2.0, 1.0, 1.0, 0.5))]
    engine.add(*requests)
    assert admissions(engine) == ["3", "1", "2", "0"]


def test_priority_before_arrival():
    engine = SmallEngine(Priority, max_num_seqs=1)
    order = [(1, 0.0), (0, 3.0), (-2, 4.0), (0, 2.0)]
    requests = [make_request(str(i), 3, priority=p, arrival=a) for i, (p, a) in enumerate(order)]
    engine.add(*requests)
    assert admissions(engine) == ["2", "3", "1", "0"]


@pytest.mark.parametrize(("scheduler", "expected"), [(FirstComeFirstServed, "c"), (Priority, "a")])
def test_who_makes_room_when_pages_run_out(scheduler, expected):
    engine = SmallEngine(scheduler, pages=8, page_size=2)
    requests = [
        make_request(id, 4, new=6, priority=p, arrival=float(i))
        for i, (id, p) in enumerate((("a", 2), ("b", 0), ("c", 1)))
    ]
    engine.add(*requests)
    while not any(r.preemptions for r in requests):
        engine.step()
    assert [r.id for r in requests if r.preemptions] == [expected]
    engine.run()
    assert all(r.output == alone(r)[0] for r in requests)


def test_an_urgent_request_does_not_interrupt_a_running_one():
    engine = SmallEngine(Priority, max_num_seqs=1)
    running, urgent = make_request("a", 3, new=9, priority=5), make_request("b", 3, priority=0)
    engine.add(running)
    engine.step()
    engine.add(urgent)
    engine.run()
    assert running.preemptions == 0


def test_a_large_request_is_not_starved_by_small_ones():
    """The first in the queue holds up the others, so it gets in when pages have become free."""
    engine = SmallEngine(FirstComeFirstServed, pages=16, page_size=2, max_num_seqs=4)
    large = make_request("large", 24, new=4, arrival=3.0)
    engine.add(*[make_request(f"s{i}", 6, new=6, arrival=i) for i in range(3)], large)
    for i in range(200):
        if large.output:
            break
        engine.add(make_request(f"n{i}", 6, new=6, arrival=10.0 + i))
        engine.step()
    assert large.output
    assert i < 40


def test_among_equals_everybody_gets_through_a_crowd():
    engine = SmallEngine(Priority, pages=10, page_size=2, max_num_seqs=4)
    requests = [make_request(str(i), 1 + i % 7, new=5, arrival=i) for i in range(60)]
    engine.add(*requests)
    ends = []
    for _ in range(3000):
        engine.step()
        ends += [i for i, r in enumerate(requests) if r.finish_reason and i not in ends]
        if len(ends) == len(requests):
            break
    assert all(r.output == alone(r)[0] for r in requests)
    assert max(abs(place - i) for place, i in enumerate(ends)) <= 4


@pytest.mark.parametrize(
    "scheduler", [FirstComeFirstServed, Priority, ShortestFirst, LastComeFirstServed]
)
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_the_order_of_requests_does_not_change_their_tokens(scheduler, depth: int):
    engine = SmallEngine(
        scheduler, depth=depth, pages=12, page_size=2, max_num_seqs=4, max_num_batched_tokens=7
    )
    requests = [
        make_request(str(i), [1, 2, 3, 4, 5, 6, 7, 8, 9][: 2 + i], new=8, arrival=i, priority=i % 3)
        for i in range(7)
    ]
    engine.add(*requests)
    engine.run()
    assert all(r.output == alone(r)[0] for r in requests)
    numbers = engine.scheduler.statistics()
    assert numbers["preemptions"] > 0
    assert numbers["prefix_hits"] > 0


def test_shortest_first():
    engine = SmallEngine(ShortestFirst, max_num_seqs=1)
    requests = [make_request(str(i), size) for i, size in enumerate((5, 2, 9, 3))]
    engine.add(*requests)
    assert admissions(engine) == ["1", "3", "0", "2"]


def test_by_default_the_last_in_the_order_makes_room():
    engine = SmallEngine(LastComeFirstServed)
    requests = [make_request(str(i), 3, arrival=a) for i, a in enumerate((5.0, 1.0, 3.0, 1.0))]
    assert engine.scheduler.victim(requests) is requests[3]


def test_a_victim_that_does_not_run_is_named():
    class Wrong(FirstComeFirstServed):
        def victim(self, running):
            return make_request("nobody", 3)

    engine = SmallEngine(Wrong, pages=4, page_size=2)
    engine.add(*[make_request(str(i), 3, new=4) for i in range(2)])
    with pytest.raises(AssertionError, match="Wrong"):
        engine.run()


def test_a_victim_sees_how_much_is_computed():
    seen = []

    class Watching(FirstComeFirstServed):
        def victim(self, running):
            seen.append([(len(r), r.computed) for r in running])
            return super().victim(running)

    engine = SmallEngine(Watching, pages=6, page_size=2, depth=0)
    engine.add(*[make_request(str(i), 5, new=4) for i in range(2)])
    engine.run()
    assert seen
    for numbers in seen:
        assert all(computed == length - 1 for length, computed in numbers)


def test_a_scheduler_from_nothing_needs_only_the_interface():
    engine = SmallEngine(OneAtATime)
    requests = [make_request(str(i), 3 + i) for i in range(3)]
    engine.add(*requests)
    engine.run()
    assert all(r.output == alone(r)[0] for r in requests)


def test_options_of_a_scheduler_are_those_of_the_interface_and_three_more():
    assert set(FirstComeFirstServed.Options.__dataclass_fields__) == {
        *Scheduler.Options.__dataclass_fields__,
        "chunked_prefill",
        "max_chunk",
        "watermark",
    }
