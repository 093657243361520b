"""Two hundred clients at once, of which a third leave, beside others that misbehave."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Iterator
from statistics import median

import pytest

from core import LLM
from tests.plugins.serve.command import Command
from tests.plugins.serve.engine.started import gone
from tests.plugins.serve.load.crowd import Crowd
from tests.plugins.serve.load.mischief import HALF, MAX_BODY
from tests.plugins.serve.load.pool import Ask, pool
from tests.plugins.serve.load.watching import metrics, resident
from tests.plugins.serve.load.wire import Connection, post

CLIENTS, VILLAINS = 200, 20
WARM_UP, MEASURED = 90, 180  # seconds
"""What the engine uses stays the same from the start, but glibc's heap grows for a minute or more,
until between what lives longer there is room for the tensors of batches of any size."""
WORDS = [
    "configs/qwen3-serve.yaml",
    f"run.max_body={MAX_BODY}",
    "cache.pages=512",  # so few that requests displace each other
    "cache.check=true",  # the engine ends if a page is lost
]


@pytest.fixture(scope="module")
def asks(llm: LLM) -> list[Ask]:
    return pool(llm)


@pytest.fixture
def crowded() -> Iterator[Command]:
    with Command(*WORDS) as server:
        yield server


def port_of(server: Command) -> int:
    return int(server.url().rpartition(":")[2])


def load(server: Command, crowd: Crowd, seconds: float) -> dict[str, list[int]]:
    """Keep the server busy for so long. -> memory of its processes, measured each second."""
    memory: dict[str, list[int]] = {"server": [], "engine": []}
    processes = {"server": server.process.pid, "engine": server.engine()}

    async def run() -> None:
        until = time.monotonic() + seconds
        async with crowd.around(CLIENTS, VILLAINS):
            while time.monotonic() < until:
                await asyncio.sleep(1)
                for name, pid in processes.items():
                    memory[name].append(resident(pid))

    asyncio.run(run())
    return memory


def growth(memory: list[int], warm: int) -> float:
    """By which part of itself memory grew behind the first `warm` seconds."""
    few = max(1, (len(memory) - warm) // 8)
    return median(memory[-few:]) / median(memory[warm : warm + few]) - 1


def everything_is_free(url: str) -> dict[str, float]:
    """The metrics, once nothing runs and nobody is connected any more: a moment later."""
    until = time.monotonic() + 10
    while True:
        found = metrics(url)
        held = [found[name] for name in ("num_requests_running", "num_requests_waiting")]
        free = not any(held) and found["kv_cache_usage_perc"] == 0
        if free and found["process_open_fds"] < 60:
            return found
        assert time.monotonic() < until, found
        time.sleep(0.05)


def check(server: Command, crowd: Crowd, answered: int) -> dict[str, float]:
    """Nothing was wrong, and nothing is left. -> the metrics"""
    assert not crowd.wrong, crowd.report()
    assert crowd.counts["answered"] > answered
    assert crowd.counts["left"] > answered / 4
    assert crowd.counts["misbehaved"] > answered / 4
    found = everything_is_free(server.url())
    assert found["prefix_cache_hits_total"] > 0
    assert "Traceback" not in server.said
    server.tell(signal.SIGTERM)
    assert server.status(within=20) == 0
    return found


@pytest.mark.slow
def test_every_answer_is_right_in_a_crowd(crowded: Command, asks: list[Ask]) -> None:
    crowd = Crowd(port_of(crowded), asks)
    memory = load(crowded, crowd, 6)
    check(crowded, crowd, 60)
    assert growth(memory["server"], 3) < 0.05


@pytest.mark.speed
@pytest.mark.timeout(600)
def test_every_answer_is_right_for_three_minutes_and_memory_stays(
    crowded: Command, asks: list[Ask]
) -> None:
    crowd = Crowd(port_of(crowded), asks)
    memory = load(crowded, crowd, WARM_UP + MEASURED)
    found = check(crowded, crowd, 600)
    assert found["num_preemptions_total"] > 0
    print(f"\n{dict(crowd.counts)}, {found['num_preemptions_total']:.0f} preemptions")
    for name, values in memory.items():
        told = ", ".join(f"{value / 2**20:.0f}" for value in values[::15])
        print(f"{name}: {told} MB, grew by {growth(values, WARM_UP):.1%} behind {WARM_UP} s")
    assert growth(memory["server"], WARM_UP) < 0.05
    assert growth(memory["engine"], WARM_UP) < 0.05


def test_answers_of_a_crowd_end_when_the_server_is_told_to_stop(
    crowded: Command, asks: list[Ask]
) -> None:
    port, engine = port_of(crowded), crowded.engine()
    some = random.Random(0).sample(asks, 48)

    async def run() -> list[str | None]:
        streams, others, halves = [
            [await Connection.open(port) for _ in range(count)] for count in (24, 24, len(HALF))
        ]
        for half, connection in zip(HALF, halves, strict=True):
            await connection.send(half)
        for at, connection in enumerate(others + streams):
            ask = some[at]
            await connection.send(post(ask.path, ask.request(at >= len(others), False, None)))
        await asyncio.gather(*(connection.begin() for connection in streams))
        crowded.tell(signal.SIGTERM)
        await asyncio.sleep(0.3)
        with pytest.raises(ConnectionRefusedError):
            await Connection.open(port)
        replies = await asyncio.gather(*(each.reply() for each in others + streams))
        # long before run.drain and run.client_timeout: nobody waits for the halves
        assert await asyncio.to_thread(crowded.status, 10) == 0
        for connection in streams + others + halves:
            connection.close()
        return [ask.wrong(reply) for ask, reply in zip(some, replies, strict=True)]

    assert not any(asyncio.run(run()))
    assert gone(engine, 1)
