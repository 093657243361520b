"""Clients that stop in the middle: they cost little, not for long, and nobody else anything."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from pathlib import Path

from plugins.serve.endpoints.bodies import LARGE_ONES
from tests.plugins.serve.command import Command
from tests.plugins.serve.load.watching import metrics, resident
from tests.plugins.serve.load.wire import Connection, post

SECONDS = 2.0  # run.client_timeout
MAX_BODY = 500_000  # bytes
MANY = 100
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-"
HALF = post("/v1/completions", b'{"prompt": "' + b"x" * (MAX_BODY - 20))[:-1]
ASKED = {"prompt": "Once", "max_tokens": 6, "temperature": 0, "ignore_eos": True}
LARGE = ASKED | {"max_tokens": 250, "n": 40, "logprobs": 20, "stream": True, "temperature": 1}
"""Megabytes of events, more than the system holds between a server and a client."""


def test_half_open_clients_are_bounded_and_given_up(folder: Path) -> None:
    words = [f"run.client_timeout={SECONDS}", f"run.max_body={MAX_BODY}", "cache.pages=4000"]
    with Command("configs/qwen3-serve.yaml", f"model.path={folder}", *words) as server:
        url = server.url()
        port = int(url.rpartition(":")[2])

        async def ask() -> str:
            connection = await Connection.open(port)
            await connection.send(post("/v1/completions", json.dumps(ASKED).encode()))
            reply = await connection.reply()
            connection.close()
            return str(json.loads(reply.body)["choices"][0]["text"])

        async def is_whole(connection: Connection) -> bool:
            data = b""
            try:
                while more := await connection.some():
                    data += more
            except ConnectionError:
                pass
            assert data.startswith(b"HTTP/1.1 200")
            return data.endswith(b"0\r\n\r\n")

        async def status(connection: Connection) -> int:
            try:
                reply = await connection.reply()
            except ConnectionError:
                return 0  # it was sending when it was turned away
            assert not reply.stays
            return reply.status

        async def stop_in_the_middle() -> None:
            right = await ask()
            files = metrics(url)["process_open_fds"]
            before, began = resident(server.process.pid), time.monotonic()
            heads = [await Connection.open(port) for _ in range(MANY)]
            bodies = [await Connection.open(port) for _ in range(MANY)]
            readers = [await Connection.open(port, receive=4096) for _ in range(3)]
            for connection in heads:
                await connection.send(HEAD)
            for connection in bodies:
                await connection.send(HALF)
            for connection in readers:
                await connection.send(post("/v1/completions", json.dumps(LARGE).encode()))
            assert await ask() == right
            told = asyncio.gather(*map(status, heads + bodies))
            most = 0
            while not told.done() or metrics(url)["process_open_fds"] > files + 1:
                most = max(most, resident(server.process.pid))
                assert time.monotonic() - began < 20 * SECONDS, "they are not given up"
                await asyncio.sleep(0.1)
            statuses = Counter(await told)
            assert statuses[408] >= MANY + LARGE_ONES - 1
            assert statuses[503] + statuses[0] >= MANY - LARGE_ONES - 1
            assert set(statuses) <= {408, 503, 0}
            assert await ask() == right
            assert not any([await is_whole(connection) for connection in readers])
            # what they had sent, what they had not taken, and some for the rest
            assert most - before < LARGE_ONES * MAX_BODY + 80 * 2**20
            for connection in heads + bodies + readers:
                connection.close()

        asyncio.run(stop_in_the_middle())
        assert metrics(url)["kv_cache_usage_perc"] == 0
