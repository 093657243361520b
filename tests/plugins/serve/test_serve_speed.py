"""What the server costs: tokens a second, the time to a first one, and steps of the engine.

    make speed ARGS="-k serve_speed"

Server, engine and client are three processes, on two cores together. The engine is the real one
with a runner that computes nothing: "flat out" it makes ten times as many tokens as have to be
sent, so the server always has more to do than it can; "paced" it waits 2 ms a step, as for a GPU,
which makes 64 streams of more than 20,000 tokens a second together.

A first byte takes what is left of the engine's step, one step, and the server's own time, which is
what lies above one and a half steps. All of it depends on cores that are free: each process that
has to wait for one adds its time slice, some milliseconds.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from core import SamplingParams, settings
from core.engine import Engine
from tests.plugins.serve.command import Command
from tests.plugins.serve.conftest import CONFIG
from tests.plugins.serve.engine.started import busy_seconds
from tests.tiny import save_tiny

HERE = Path(__file__).parent
PLUGIN, LOAD = HERE / "nothing_plugin.py", HERE / "sse_load.py"
PATHS = ["/v1/completions", "/v1/chat/completions"]
STREAMS, LENGTH = 64, 4096
STEP = 0.002  # seconds of a paced step

pytestmark = pytest.mark.speed


@pytest.fixture(scope="module", autouse=True)
def two_cores() -> Iterator[None]:
    """For this process, and for those that it starts."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:2])
    yield
    os.sched_setaffinity(0, before)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Settings of a small model of which nothing but its shape is used."""
    folder = tmp_path_factory.mktemp("small")
    save_tiny(folder, num_hidden_layers=1, max_position_embeddings=LENGTH)
    room = (f"cache.pages={(STREAMS + 8) * LENGTH // 64}", f"scheduler.max_num_seqs={STREAMS + 8}")
    nothing = ("runner.use=idle", "attention=nothing", f"plugins=[{PLUGIN}]")
    budget = "scheduler.max_num_batched_tokens=8192"
    return [f"model.path={folder}", "cache.page_size=64", *room, budget, *nothing]


class Served(NamedTuple):
    url: str
    engine: int  # its process

    def load(self, path: str, tokens: int, probes: int = 0) -> dict[str, Any]:
        """What the client found."""
        asked = [self.url.rpartition(":")[2], str(STREAMS), str(tokens), path, str(probes)]
        done = subprocess.run([sys.executable, str(LOAD), *asked], stdout=-1, check=True)
        found: dict[str, Any] = json.loads(done.stdout)
        firsts = found.pop("first_byte_ms")
        if firsts:
            found["first_byte_p50_ms"] = firsts[len(firsts) // 2]
            found["first_byte_p99_ms"] = firsts[int(0.99 * len(firsts))]
        print(path, ", ".join(f"{name}: {value:,.1f}" for name, value in found.items()))
        return found

    def steps(self) -> int:
        """The engine's, so far."""
        number: int = httpx.get(self.url + "/counters").json()["steps"]
        return number


@contextmanager
def serving(words: list[str], seconds: float) -> Iterator[Served]:
    with Command(str(CONFIG), *words, f"runner.seconds={seconds}") as command:
        served = Served(command.url(), command.engine())
        print()
        served.load(PATHS[0], 20)
        yield served


@pytest.fixture(scope="module")
def flat_out(words: list[str]) -> Iterator[Served]:
    with serving(words, 0) as served:
        yield served


@pytest.fixture(scope="module")
def paced(words: list[str]) -> Iterator[Served]:
    with serving(words, STEP) as served:
        yield served


@pytest.mark.parametrize("path", PATHS)
def test_tokens_a_second_with_an_event_for_each(flat_out: Served, path: str) -> None:
    found = [flat_out.load(path, 1500) for _ in range(3)]
    assert all(f["tokens"] >= STREAMS * 1500 for f in found)
    assert max(f["tokens_per_second"] for f in found) > 20_000


@pytest.mark.parametrize("path", PATHS)
def test_a_first_byte_beside_streams_of_20_000_tokens_a_second(paced: Served, path: str) -> None:
    found = [paced.load(path, 1500, probes=120) for _ in range(3)]
    assert min(f["probes"] for f in found) > 50
    assert max(f["tokens_per_second"] for f in found) > 20_000
    assert min(f["first_byte_p50_ms"] for f in found) < 10
    assert min(f["first_byte_p99_ms"] for f in found) < 10
    assert min(f["longest_gap_ms"] for f in found) < 50


@pytest.mark.parametrize("path", PATHS)
def test_a_first_byte_beside_streams_that_are_behind(flat_out: Served, path: str) -> None:
    """Their events would be enough work for seconds; a new request does not wait for them."""
    found = [flat_out.load(path, LENGTH - 64, probes=60) for _ in range(3)]
    assert min(f["first_byte_p50_ms"] for f in found) < 10


class Steps(NamedTuple):
    """How long one takes: by the clock, and of processor time in the engine's process."""

    clock: float
    busy: float


def offline(words: list[str], seconds: float, tokens: int) -> Iterator[Steps]:
    """Of an engine in this process; anew with each `next`."""
    params = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0.0)
    config = settings.load(CONFIG, [*words, f"runner.seconds={seconds}"], plugins=[str(PLUGIN)])
    with closing(Engine(config)) as engine:
        gc.collect()
        gc.freeze()
        while True:
            steps = -engine.statistics()["steps"]
            began, busy = time.perf_counter(), time.process_time()
            for _ in range(STREAMS):
                engine.add([5] * 8, params)
            while engine.busy:
                engine.step()
            began, busy = time.perf_counter() - began, time.process_time() - busy
            steps += engine.statistics()["steps"]
            yield Steps(began / steps, busy / steps)


def through(served: Served, tokens: int) -> Iterator[Steps]:
    """The same behind the server and its streams."""
    while True:
        steps, busy = -served.steps(), -busy_seconds(served.engine)
        found = served.load(PATHS[0], tokens)
        busy += busy_seconds(served.engine)
        steps += served.steps()
        yield Steps(found["tokens"] / found["tokens_per_second"] / steps, busy / steps)


@pytest.mark.parametrize("way", ["flat out", "paced"])
def test_steps_of_the_engine(way: str, words: list[str], request: pytest.FixtureRequest) -> None:
    """Flat out its processor time counts: three busy processes share the clock of two cores. Paced
    there is time to spare, so the clock counts; the processor, cold after each pause, is told."""
    served: Served = request.getfixturevalue(way.replace(" ", "_"))
    seconds, tokens = (STEP, 500) if way == "paced" else (0.0, 900)
    alone, beside = offline(words, seconds, tokens), through(served, tokens)
    next(alone), next(beside)
    try:
        pairs = [(next(alone), next(beside)) for _ in range(10)]
    finally:
        alone.close()
        gc.unfreeze()
    for name in Steps._fields:
        took = [1e6 * min(getattr(run, name) for run in runs) for runs in zip(*pairs, strict=True)]
        loss = 1 - took[0] / took[1]
        told = f"{took[0]:.0f} us offline, {took[1]:.0f} us served, {loss:.1%} fewer a second"
        print(f"{way}, {name}: a step takes {told}")
        assert loss < 0.10 or name != ("clock" if way == "paced" else "busy")
