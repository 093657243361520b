"""Many clients at the same time: those that stay for their answer, that leave, that misbehave."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tests.plugins.serve.load.mischief import misbehave
from tests.plugins.serve.load.pool import Ask
from tests.plugins.serve.load.wire import Connection, Hung, post

MOST_TOLD = 10


class Crowd:
    """Counts of what its clients saw."""

    def __init__(self, port: int, asks: Sequence[Ask], seed: int = 0) -> None:
        self._port, self._asks, self._seed = port, asks, seed
        self.counts: Counter[str] = Counter()  # by what was done
        self.wrong: list[str] = []  # a sentence for each thing that is not as it should be
        self._salts = map(str, itertools.count())
        self._ending = False

    @asynccontextmanager
    async def around(self, clients: int, villains: int) -> AsyncIterator[None]:
        """Clients that each ask again and again until the block ends; what they have asked by then
        is waited for. A third of the requests is left before its end."""
        self._ending = False
        chances = (random.Random(f"{self._seed} {number}") for number in itertools.count())
        tasks = [asyncio.ensure_future(self._client(next(chances))) for _ in range(clients)]
        tasks += [asyncio.ensure_future(self._villain(next(chances))) for _ in range(villains)]
        try:
            yield
        finally:
            self._ending = True
            await asyncio.gather(*tasks)

    def report(self) -> str:
        """What was wrong, or "" if nothing was."""
        return "\n".join(self.wrong[:MOST_TOLD])

    async def _client(self, chance: random.Random) -> None:
        connection: Connection | None = None
        while not self._ending:
            ask = chance.choice(self._asks)
            stream = chance.random() < 0.75
            salt = next(self._salts) if chance.random() < 0.3 else None
            request = post(ask.path, ask.request(stream, chance.random() < 0.3, salt))
            try:
                if connection is None:
                    connection = await Connection.open(self._port)
                if chance.random() < 1 / 3:
                    await self._leave(connection, request, chance)
                    connection = None
                else:
                    connection = await self._stay(connection, ask, request, chance)
            except (ConnectionError, Hung) as error:
                self.counts["broken"] += 1
                self.wrong.append(f"{ask.body}: {error}")
                connection = None
        if connection is not None:
            connection.close()

    async def _stay(
        self, connection: Connection, ask: Ask, request: bytes, chance: random.Random
    ) -> Connection | None:
        """-> the connection, if it is to be used again."""
        if chance.random() < 0.1:  # it comes in two parts
            half = chance.randrange(1, len(request))
            await connection.send(request[:half])
            await asyncio.sleep(chance.uniform(0, 0.2))
            request = request[half:]
        await connection.send(request)
        reply = await connection.reply()
        self.counts["answered"] += 1
        if (wrong := ask.wrong(reply)) is not None:
            self.wrong.append(f"{ask.body}: {wrong}")
        if reply.stays and chance.random() < 0.8:
            return connection
        connection.close()
        return None

    async def _leave(self, connection: Connection, request: bytes, chance: random.Random) -> None:
        await connection.send(request)
        for _ in range(chance.choice([0, 0, 1, 2, 5, 20])):
            data = await connection.some()
            if not data or data.endswith(b"0\r\n\r\n") or b"\r\ncontent-length" in data:
                break  # that was all of it
        else:
            await asyncio.sleep(chance.choice([0, 0, 0.05, 0.5]))
        self.counts["left"] += 1
        if chance.random() < 0.5:
            connection.reset()
        else:
            connection.close()

    async def _villain(self, chance: random.Random) -> None:
        while not self._ending:
            try:
                wrong = await misbehave(self._port, chance)
            except Hung as error:
                wrong = str(error)
            self.counts["misbehaved"] += 1
            if wrong is not None:
                self.wrong.append(wrong)
            await asyncio.sleep(chance.uniform(0, 0.4))
