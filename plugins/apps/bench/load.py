"""Puts a server under load: clients in turn, or requests at moments that wait for nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import TypeVar

from plugins.apps.bench.connection import Address, Answer, Connection, clock


class Pool:
    """Connections to one server; those that are idle are used again."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._idle: list[Connection] = []
        self._all: list[Connection] = []
        self.busy = self.most_busy = 0  # requests under way

    async def ask(self, request: bytes, since: float | None = None) -> Answer:
        """Send a request over a connection of its own. A time that passes connecting counts."""
        since = clock() if since is None else since
        self.busy += 1
        self.most_busy = max(self.most_busy, self.busy)
        try:
            while self._idle:
                connection = self._idle.pop()
                if connection.open:
                    break
            else:
                connection = await self.address.connect()
                self._all.append(connection)
            answer = await connection.ask(request, since)
            if connection.open:
                self._idle.append(connection)
            return answer
        finally:
            self.busy -= 1

    def close(self) -> None:
        """Hang up everywhere."""
        for connection in self._all:
            if connection.open:
                connection.close()


T = TypeVar("T")
Ask = Callable[[bytes, float | None], Awaitable[Answer]]


async def closed_loop(ask: Ask, requests: Sequence[bytes], concurrency: int) -> list[Answer]:
    """So many clients; each sends its next request when the answer before has ended.

    -> answers in the order of the requests.
    """
    answers: dict[int, Answer] = {}
    coming = iter(enumerate(requests))

    async def client() -> None:
        for number, request in coming:
            answers[number] = await ask(request, None)

    await _all([client() for _ in range(min(concurrency, len(requests)))])
    return [answers[number] for number in range(len(requests))]


async def open_loop(ask: Ask, requests: Sequence[bytes], arrivals: Sequence[float]) -> list[Answer]:
    """Each request at its moment, in seconds after the start, however many are under way.

    Times count from that moment, also where the client itself came late: a server that makes
    requests wait cannot hide it.
    """
    start = clock()

    async def client(request: bytes, arrival: float) -> Answer:
        if (wait := start + arrival - clock()) > 0:
            await asyncio.sleep(wait)
        return await ask(request, start + arrival)

    return await _all([client(r, at) for r, at in zip(requests, arrivals, strict=True)])


def arrival_times(count: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """Moments of `count` arrivals, `rate` a second on average, the first at 0.

    The gaps are drawn from a gamma distribution of shape `burstiness`: 1 is a Poisson process,
    less comes in bursts, more is steadier.
    """
    draw, moments = Random(seed), [0.0]
    for _ in range(count - 1):
        moments.append(moments[-1] + draw.gammavariate(burstiness, 1 / (rate * burstiness)))
    return moments


async def _all(clients: Sequence[Awaitable[T]]) -> list[T]:
    tasks = [asyncio.ensure_future(client) for client in clients]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
