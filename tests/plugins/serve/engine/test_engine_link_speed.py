"""What it costs that the engine is in another process: ids a second, and time taken from steps."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from core import SamplingParams
from core.config import Config
from core.engine import Engine
from plugins.serve.engine.client import EngineClient
from tests.plugins.serve.engine.started import Started, busy_seconds, configuration
from tests.tiny import save_tiny

PLUGIN = Path(__file__).parent / "nothing_plugin.py"
TOKENS = 900
PROMPT = [5] * 64
PARAMS = SamplingParams(max_tokens=TOKENS, ignore_eos=True, temperature=0.0)


class Run(NamedTuple):
    """All requests from their arrival to their end."""

    seconds: float
    step: float  # seconds of processor time in the engine's process, a step
    ids: int


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    return save_tiny(folder, num_hidden_layers=1, max_position_embeddings=1024)


def without_model(checkpoint: Path, streams: int) -> Config:
    words = ("runner=nothing", "attention=nothing", "cache.check=false", "cache.page_size=16")
    room = (f"cache.pages={streams * 64}", f"scheduler.max_num_seqs={streams}")
    budget = "scheduler.max_num_batched_tokens=8192"
    return configuration(checkpoint, *words, *room, budget, plugins=[str(PLUGIN)])


def offline(config: Config, streams: int) -> Iterator[Run]:
    """Runs of an engine in this process, one for each `next`."""
    with closing(Engine(config)) as engine:
        gc.collect()
        gc.freeze()
        while True:
            began, busy = time.monotonic(), time.process_time()
            steps = engine.statistics()["steps"]
            for _ in range(streams):
                engine.add(PROMPT, PARAMS)
            while engine.busy:
                engine.step()
            steps = engine.statistics()["steps"] - steps
            busy = time.process_time() - busy
            yield Run(time.monotonic() - began, busy / steps, streams * TOKENS)


def served(config: Config, streams: int) -> Iterator[Run]:
    """The same through a client, whose answers are each followed by a task of their own."""

    async def follow(client: EngineClient) -> int:
        return sum([len(piece.ids) async for piece in client.submit(PROMPT, PARAMS)])

    async def run(client: EngineClient) -> Run:
        steps = (await client.statistics())["steps"]
        began, busy = time.monotonic(), busy_seconds(started.pid)
        ids = await asyncio.gather(*(follow(client) for _ in range(streams)))
        seconds, busy = time.monotonic() - began, busy_seconds(started.pid) - busy
        steps = (await client.statistics())["steps"] - steps
        return Run(seconds, busy / steps, sum(ids))

    with closing(Started(config)) as started:
        while True:
            yield started.run(run)


@pytest.mark.speed
def test_ids_come_fast_and_steps_stay_fast(small: Path) -> None:
    streams, rounds = 64, 7
    config = without_model(small, streams)
    alone, through = offline(config, streams), served(config, streams)
    next(alone), next(through)
    try:
        pairs = [(next(alone), next(through)) for _ in range(rounds)]
    finally:
        alone.close()
        through.close()
        gc.unfreeze()

    rate = max(run.ids / run.seconds for _, run in pairs)
    steps = [1e6 * min(run.step for run in runs) for runs in zip(*pairs, strict=True)]
    loss = 1 - steps[0] / steps[1]
    print(f"{streams} streams: {rate:,.0f} ids/s through the client; a step takes ", end="")
    print(f"{steps[0]:.0f} us offline and {steps[1]:.0f} us when served, {loss:.1%} less a second")
    assert rate > 20_000
    assert loss < 0.10
