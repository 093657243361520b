"""A client that costs little: many streams at once, and further ones beside them.

python sse_load.py PORT STREAMS TOKENS PATH PROBES   -> one line of JSON
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import sys
import time
from typing import Any

import uvloop

CHAT = {"messages": [{"role": "user", "content": "Hello"}]}


class Stream(asyncio.Protocol):
    """One request on a connection of its own."""

    def __init__(self, before: int) -> None:
        """`before`: events that come before the first token's."""
        self.events = 0
        self.first = 0.0  # seconds from the request to the first byte of its first token
        self.longest = 0.0  # seconds without an event
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._before, self._last, self._end = before, 0.0, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def ask(self, request: bytes) -> None:
        self.started = time.perf_counter()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self.events += data.count(b"data: {")
        if self.first:
            self.longest = max(self.longest, now - self._last)
        elif self.events > self._before:
            self.first = now - self.started
        self._last = now
        self._end = (self._end + data[-40:])[-40:]
        if b"data: [DONE]" in self._end:
            self.done.set_result(None)
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the stream has no end"))


def post(path: str, tokens: int) -> bytes:
    fields = CHAT if "chat" in path else {"prompt": "Hello"}
    options = {"stream": True, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    body = json.dumps({**fields, **options}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def measure(port: int, streams: int, tokens: int, path: str, probes: int) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    before = int("chat" in path)  # the role of who answers

    async def connect() -> Stream:
        return (await loop.create_connection(lambda: Stream(before), "127.0.0.1", port))[1]

    open_ones = [await connect() for _ in range(streams)]
    began, busy = time.perf_counter(), time.process_time()
    for stream in open_ones:
        stream.ask(post(path, tokens))
    firsts: list[float] = []
    while len(firsts) < probes:  # one after the other, while all streams go on
        await asyncio.sleep(random.uniform(0.01, 0.03))  # at no fixed phase of a step
        probe = await connect()
        probe.ask(post(path, 3))
        await probe.done
        if any(stream.done.done() for stream in open_ones):
            break
        firsts.append(probe.first)
    await asyncio.gather(*(stream.done for stream in open_ones))
    seconds, busy = time.perf_counter() - began, time.process_time() - busy
    events = sum(stream.events - before for stream in open_ones)
    return {
        "tokens": events,
        "tokens_per_second": events / seconds,
        "client_busy": busy / seconds,
        "longest_gap_ms": 1e3 * max(stream.longest for stream in open_ones),
        "probes": len(firsts),
        "first_byte_ms": [1e3 * first for first in sorted(firsts)],
    }


if __name__ == "__main__":
    port, streams, tokens, path, probes = sys.argv[1:]
    gc.disable()
    found = measure(int(port), int(streams), int(tokens), path, int(probes))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(found)))
