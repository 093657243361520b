"""A client that costs little: many streams at once, how many events came and when the first did.

python sse_load.py PORT STREAMS TOKENS PATH PROBES   -> one line of JSON
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

CHAT = {"messages": [{"role": "user", "content": "Hello"}]}


class Stream(asyncio.Protocol):
    """One request on a connection of its own."""

    def __init__(self) -> None:
        self.events = 0
        self.first = 0.0  # seconds from the request to the first byte of its answer
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._end = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def ask(self, request: bytes) -> None:
        self.started = time.perf_counter()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        if not self.first:
            self.first = time.perf_counter() - self.started
        self.events += data.count(b"data: ")
        self._end = (self._end + data)[-40:]
        if b"data: [DONE]" in self._end:
            self.done.set_result(None)
            self.transport.close()


def post(path: str, tokens: int) -> bytes:
    fields = CHAT if "chat" in path else {"prompt": "Hello"}
    body = json.dumps({**fields, "stream": True, "max_tokens": tokens}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def measure(port: int, streams: int, tokens: int, path: str, probes: int) -> dict[str, Any]:
    loop = asyncio.get_running_loop()

    async def connect() -> Stream:
        return (await loop.create_connection(Stream, "127.0.0.1", port))[1]

    open_ones = [await connect() for _ in range(streams)]
    began = time.perf_counter()
    for stream in open_ones:
        stream.ask(post(path, tokens))
    firsts = []
    for _ in range(probes):  # further clients, one after the other, while the streams go on
        await asyncio.sleep(0.05)
        probe = await connect()
        probe.ask(post(path, 3))
        await probe.done
        firsts.append(probe.first)
    running = any(not stream.done.done() for stream in open_ones)
    await asyncio.gather(*(stream.done for stream in open_ones))
    seconds = time.perf_counter() - began
    together = sorted(stream.first for stream in open_ones)
    return {
        "events": sum(stream.events for stream in open_ones),
        "events_per_second": sum(stream.events for stream in open_ones) / seconds,
        "first_byte_of_all_at_once_p50_ms": together[streams // 2] * 1e3,
        "first_byte_of_probes_p50_ms": sorted(firsts)[probes // 2] * 1e3 if probes else None,
        "probes_beside_streams": running,
    }


if __name__ == "__main__":
    port, streams, tokens, path, probes = sys.argv[1:]
    found = measure(int(port), int(streams), int(tokens), path, int(probes))
    print(json.dumps(asyncio.run(found)))
