"""An engine's process with its client, driven from tests that are no coroutines."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from core import settings
from core.config import Config
from core.errors import EngineDead
from core.sampling.params import SamplingParams
from plugins.serve.engine.client import EngineClient, Piece, Submission

T = TypeVar("T")
PROMPT = [5, 6, 7, 8, 9]


def configuration(checkpoint: Path, *words: str, plugins: Sequence[str] = ()) -> Config:
    """Few rows and small pages, on a CPU, with every page checked after every step."""
    usual = [
        f"model.path={checkpoint}",
        "model.device=cpu",
        "model.dtype=float32",
        "cache.page_size=4",
        "cache.pages=80",  # so few that requests displace each other
        "cache.check=true",
        "scheduler.max_num_seqs=8",
        "scheduler.max_num_batched_tokens=64",
        "executor=local",
        "executor.threads=1",
    ]
    return settings.load(None, [*usual, *words], plugins=list(plugins))


class Started:
    """A client on an event loop of its own. `run` runs a coroutine function that gets the client.

    Close it, and the process is gone.
    """

    def __init__(self, config: Config, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self.client = EngineClient(config, name="tiny", **options)
        try:
            self._runner.run(self.client.start())
        except BaseException:
            self._runner.close()
            raise

    @property
    def pid(self) -> int:
        assert self.client._process is not None
        return self.client._process.pid

    def run(self, work: Callable[[EngineClient], Coroutine[Any, Any, T]], limit: float = 60) -> T:
        return self._runner.run(asyncio.wait_for(work(self.client), limit))

    def close(self) -> None:
        self._runner.run(self.client.close())
        self._runner.close()


def params(**given: Any) -> SamplingParams:
    """Short, and the same each time."""
    return SamplingParams(**{"max_tokens": 12, "seed": 4, **given})


async def free(client: EngineClient) -> None:
    """Returns when nothing runs and every page is free or kept for the next prompt."""
    for _ in range(500):
        numbers = await client.statistics()
        if not (numbers["running"] or numbers["waiting"] or numbers["pages_owned"]):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(numbers)


async def answer(
    client: EngineClient, ids: Sequence[int], params: SamplingParams, **named: Any
) -> list[list[Piece]]:
    """The pieces of each of the answers to a prompt."""
    found: list[list[Piece]] = [[] for _ in range(params.n)]
    async for piece in client.submit(ids, params, **named):
        found[piece.index].append(piece)
    return found


async def failing(submission: Submission) -> str:
    """The sentence with which a stream ends."""
    with pytest.raises(EngineDead) as dead:
        async for _ in submission:
            pass
    return str(dead.value)


def ids_of(pieces: Sequence[Piece]) -> list[int]:
    return [token for piece in pieces for token in piece.ids]


def busy_seconds(pid: int) -> float:
    """Processor time of a process so far, all of its threads."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def gone(pid: int, within: float) -> bool:
    """Whether a process ends in time. One that nobody has waited for counts as ended."""
    until = time.monotonic() + within
    while True:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
            os.kill(pid, 0)
        except (FileNotFoundError, ProcessLookupError):
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(0.02)
