"""What scheduling costs, and that it does not grow with what has been before."""

from __future__ import annotations

import gc
import random
import sys

import pytest

from core.scheduling.host_cost import measure_host
from core.scheduling.waiting import WaitingQueue
from plugins.scheduling.fcfs import FirstComeFirstServed
from tests.small_engine import SmallEngine, make_request


def sizes(scheduler: FirstComeFirstServed) -> dict[str, int]:
    """Entries in everything that a scheduler keeps, found by walking its attributes."""
    found: dict[str, int] = {}

    def walk(thing: object, path: str) -> None:
        for name, value in vars(thing).items():
            if hasattr(value, "__len__") and not isinstance(value, str):
                found[f"{path}.{name}"] = len(value)
            if type(value).__module__.startswith("core.") and hasattr(value, "__dict__"):
                walk(value, f"{path}.{name}")

    walk(scheduler, "scheduler")
    return found


def test_nothing_is_kept_of_requests_that_have_ended():
    rng = random.Random(0)
    engine = SmallEngine(pages=24, max_num_seqs=4, check=False)
    kept = []
    for round in range(3):
        for i in range(300):
            request = make_request(f"{round}.{i}", [rng.randint(0, 3) for _ in range(9)], new=3)
            engine.add(request)
            if rng.random() < 0.3:
                engine.scheduler.finish(request, "abort")
            engine.step()
        engine.run()
        kept.append(sizes(engine.scheduler))
    bounded = {"_cached", "_page_of", "_key_of", "_free", "_released", "_heap", "_order"}
    for name, count in kept[-1].items():
        if name.rpartition(".")[2] in bounded:
            assert count <= 64, f"{name} grows"
        else:
            assert count == kept[0][name], f"{name} grows"
    gc.collect()
    assert sys.getrefcount(request) <= 3, "a request that has ended is still held somewhere"


def test_the_queue_forgets_what_was_taken_out_early():
    queue = WaitingQueue()
    requests = [make_request(str(i), 1) for i in range(5000)]
    for age, request in enumerate(requests):
        queue.push(request, 0, age)
        if age % 1000:
            queue.discard(request)
    assert len(queue) == 5
    assert len(queue._heap) < 100
    assert [queue.pop().id for _ in range(5)] == ["0", "1000", "2000", "3000", "4000"]


def test_host_costs_are_measured_for_any_scheduler():
    found = measure_host(FirstComeFirstServed, 8, steps=5)
    assert (found["running"], found["page_size"]) == (8, 16)
    assert 0 < found["plan_us"] < found["total_us"] <= found["total_p99_us"]


@pytest.mark.speed
def test_a_decode_step_costs_little_and_grows_no_faster_than_its_size():
    costs = {n: measure_host(FirstComeFirstServed, n)["total_us"] for n in (16, 64, 256, 1024)}
    print({n: round(us) for n, us in costs.items()}, "us a step")
    assert costs[256] < 150
    assert costs[1024] < 4.5 * costs[256]
