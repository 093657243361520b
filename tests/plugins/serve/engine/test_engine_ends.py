"""An engine's process that breaks, is killed or loses its server: who learns of it, what stays."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

from core import SamplingParams
from core.errors import EngineDead, UserError
from plugins.serve.endpoints import health
from plugins.serve.engine.client import EngineClient
from tests.plugins.serve.engine.started import (
    Started,
    answer,
    busy_seconds,
    configuration,
    failing,
    gone,
    ids_of,
)

BREAKING = Path(__file__).parent / "breaking_scheduler.py"
LONG = SamplingParams(max_tokens=200, ignore_eos=True)
SHORT = SamplingParams(max_tokens=3, ignore_eos=True)

SERVER = """
import asyncio, sys
from plugins.serve.engine.client import EngineClient
from core import SamplingParams
from tests.plugins.serve.engine.started import configuration

async def main():
    checkpoint, plugin, length = sys.argv[1:]
    config = configuration(checkpoint, "scheduler=breaking", plugins=[plugin])
    client = EngineClient(config, name="tiny")
    await client.start()
    params = SamplingParams(max_tokens=200, ignore_eos=True)
    streams = [client.submit([1] * int(length), params) for _ in range(4)]
    await asyncio.wait_for(streams[0].accepted(), 20)
    print(client._process.pid, flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


def start_breaking(checkpoint: Path) -> Started:
    return Started(configuration(checkpoint, "scheduler=breaking", plugins=[str(BREAKING)]))


@pytest.fixture
def breaking(tiny_served: Path) -> Iterator[Started]:
    with closing(start_breaking(tiny_served)) as started:
        yield started


async def health_of(client: EngineClient) -> int:
    app = Starlette(routes=health.ROUTES)
    app.state.client = client
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as http:
        return (await http.get("/health")).status_code


def test_every_stream_learns_that_the_engine_was_killed(
    tiny_served: Path, caplog: pytest.LogCaptureFixture
) -> None:
    started = Started(configuration(tiny_served))

    async def kill(client: EngineClient) -> tuple[list[str], float, int, int]:
        many = [client.submit([i, 2], LONG) for i in range(12)]  # more than run at once
        await many[0].__anext__()
        before = await health_of(client)
        os.kill(started.pid, signal.SIGKILL)
        began = time.monotonic()
        sentences = await asyncio.gather(*map(failing, many))
        return sentences, time.monotonic() - began, before, await health_of(client)

    try:
        sentences, seconds, before, after = started.run(kill)

        assert seconds < 5
        assert (before, after) == (200, 503)
        assert len(set(sentences)) == 1
        assert "killed by SIGKILL" in sentences[0]
        assert "killed by SIGKILL" in caplog.text
        with pytest.raises(EngineDead, match="SIGKILL"):
            started.client.submit([1], SHORT)
        with pytest.raises(EngineDead, match="SIGKILL"):
            started.run(lambda client: client.statistics())
    finally:
        started.close()


def test_what_breaks_the_loop_is_told_in_a_sentence_and_logged_whole(
    tiny_served: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def ask(client: EngineClient) -> list[str]:
        other = client.submit([1, 2, 3], LONG)
        await other.__anext__()
        return await asyncio.gather(failing(other), failing(client.submit([1] * 13, SHORT)))

    # not the fixture: what it writes before the test is not captured
    with closing(start_breaking(tiny_served)) as started:
        sentences = started.run(ask)

        assert len(set(sentences)) == 1
        assert "thirteen tokens" in sentences[0]
        assert "\n" not in sentences[0]
        assert "Traceback" in capfd.readouterr().err
        assert gone(started.pid, 5)


def test_a_request_that_breaks_a_plugin_harms_no_other(breaking: Started) -> None:
    async def ask(client: EngineClient) -> tuple[list[str], int]:
        other = client.submit([1, 2, 3], LONG)
        ids = [token for _ in range(9) for token in (await other.__anext__()).ids]  # it is decoding
        pieces = await answer(client, [1] * 15, SamplingParams(n=2))
        ids += ids_of([piece async for piece in other])
        assert client.alive
        assert not client._unread
        assert not client._answers
        return [str(piece.error) for (piece,) in pieces], len(ids)

    errors, length = breaking.run(ask)

    assert len(errors) == 2
    assert all("fifteen tokens" in error for error in errors)
    assert length == 200


def test_a_process_that_hangs_is_ended_with_the_client(breaking: Started) -> None:
    async def hang(client: EngineClient) -> float:
        client.submit([1] * 14, SHORT)
        await asyncio.sleep(0.2)
        began = time.monotonic()
        await client.close(grace=0.5)
        return time.monotonic() - began

    assert breaking.run(hang) < 3
    assert gone(breaking.pid, 0.1)


def test_an_engine_that_cannot_start_says_why(tiny_served: Path) -> None:
    with pytest.raises(UserError, match="max_length is 5000"):
        Started(configuration(tiny_served, "model.max_length=5000"))


@pytest.mark.parametrize("length", [2, 14], ids=["that runs", "that hangs"])
def test_the_process_does_not_outlive_a_server_that_was_killed(
    tiny_served: Path, length: int
) -> None:
    command = [sys.executable, "-c", SERVER, str(tiny_served), str(BREAKING), str(length)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    pid = 0
    try:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        assert not gone(pid, 0.2)

        server.kill()

        assert gone(pid, 5)
    finally:
        server.kill()
        server.communicate()
        if pid and not gone(pid, 0):
            os.kill(pid, signal.SIGKILL)


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def test_a_rank_that_dies_ends_the_engine_and_nothing_stays(tiny_served: Path) -> None:
    with closing(Started(configuration(tiny_served, "parallel.tensor=2"))) as started:
        (rank,) = children(started.pid)

        async def kill(client: EngineClient) -> str:
            submission = client.submit([1, 2], LONG)
            await submission.__anext__()
            os.kill(rank, signal.SIGKILL)
            return await failing(submission)

        assert "rank 1" in started.run(kill)
        assert gone(started.pid, 5)


def test_ranks_end_with_an_engine_that_is_killed(tiny_served: Path) -> None:
    with closing(Started(configuration(tiny_served, "parallel.tensor=2"))) as started:
        (rank,) = children(started.pid)
        os.kill(started.pid, signal.SIGKILL)

        assert gone(rank, 5)


class TestOneThatLives:
    def test_signals_are_the_servers_alone(self, engine: Started) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(engine.pid, number)

        (pieces,) = engine.run(lambda client: answer(client, [1, 2], SHORT))

        assert len(ids_of(pieces)) == 3

    def test_an_idle_engine_takes_no_time(self, engine: Started) -> None:
        engine.run(lambda client: answer(client, [1, 2], SHORT))
        time.sleep(0.2)
        before = busy_seconds(engine.pid)

        time.sleep(1.0)

        assert busy_seconds(engine.pid) - before < 0.005

    def test_a_server_that_does_not_read_is_not_waited_for(self, engine: Started) -> None:
        """It finds everything when it reads again."""

        async def ask(client: EngineClient) -> list[int]:
            many = [asyncio.ensure_future(answer(client, [i], LONG)) for i in range(8)]
            await asyncio.sleep(0.05)
            time.sleep(1.0)
            return [len(ids_of(pieces)) for (pieces,) in await asyncio.gather(*many)]

        assert engine.run(ask) == [200] * 8

    def test_two_live_side_by_side(self, engine: Started, tiny_served: Path) -> None:
        async def ask(client: EngineClient) -> list[int]:
            (pieces,) = await answer(client, [1, 2], SamplingParams(max_tokens=9, seed=2))
            return ids_of(pieces)

        other = Started(configuration(tiny_served))
        try:
            expected = engine.run(ask)
            assert other.run(ask) == expected
        finally:
            other.close()
        assert engine.run(ask) == expected

    def test_what_is_closed_lets_its_answers_end(self, tiny_served: Path) -> None:
        started = Started(configuration(tiny_served))

        async def drain(client: EngineClient) -> list[int]:
            running = [asyncio.ensure_future(answer(client, [i], LONG)) for i in range(4)]
            await asyncio.sleep(0.05)
            closing = asyncio.ensure_future(client.close(drain=30))
            await asyncio.sleep(0)
            with pytest.raises(EngineDead, match="stopping"):
                client.submit([1], SHORT)
            await closing
            return [len(ids_of(pieces)) for (pieces,) in await asyncio.gather(*running)]

        try:
            assert started.run(drain) == [200] * 4
            assert gone(started.pid, 0.1)
        finally:
            started.close()

    def test_those_that_take_too_long_are_told_so(self, tiny_served: Path) -> None:
        started = Started(configuration(tiny_served))

        async def drain(client: EngineClient) -> str:
            submission = client.submit([1], LONG)
            await submission.__anext__()
            await client.close()
            return await failing(submission)

        try:
            assert "was stopped" in started.run(drain)
        finally:
            started.close()
