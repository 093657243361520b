"""Ranks that end, whenever it is: named within ten seconds, and nothing is left behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from core import LLM, EngineDead, SamplingParams, UserError
from tests.acceptance.broken import whole
from tests.acceptance.leftovers import PROGRAM, listening, ranks_of

__all__ = ["whole"]

ROOT = Path(__file__).parents[2]
PROMPT = list(b"The wind")


def plain(**changes) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 20, "ignore_eos": True} | changes)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    gc.collect()
    shared, ports = set(os.listdir("/dev/shm")), listening()
    yield
    gc.collect()
    deadline = time.monotonic() + 10
    while (ranks_of(os.getpid()) or listening() - ports) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert ranks_of(os.getpid()) == set()
    assert listening() <= ports
    assert set(os.listdir("/dev/shm")) <= shared


PLACES = {
    "at its start": """
        if RANK:
            die()
    """,
    "while it loads": """
        from core.hooks import hookimpl

        @hookimpl
        def open_weights(path):
            from plugins.sources.mmap import MmapSource

            class Dies(MmapSource):
                def read(self, name, box):
                    if RANK and "layers.1" in name:
                        die()
                    return super().read(name, box)

            return Dies(path)
    """,
    "while it prepares": """
        from plugins.runners.eager import Eager
        from core.registry import runners

        @runners.register("dies")
        class Dies(Eager):
            def prepare(self, step, limits):
                if RANK:
                    die()
                super().prepare(step, limits)
    """,
    "while it generates": """
        from plugins.runners.eager import Eager
        from core.registry import runners

        @runners.register("dies")
        class Dies(Eager):
            def run(self, batch):
                if RANK and int(batch.positions[0]) > 10:
                    die()
                return super().run(batch)
    """,
}


@pytest.mark.parametrize("place", PLACES)
def test_a_rank_that_is_killed(whole, tmp_path, device, place):
    plugin = tmp_path / "dies.py"
    head = f"""
        import os, signal
        RANK = {PROGRAM!r} in open("/proc/self/cmdline").read()

        def die():
            os.kill(os.getpid(), signal.SIGKILL)
    """
    plugin.write_text(textwrap.dedent(head) + textwrap.dedent(PLACES[place]))
    settings = {"plugins": [str(plugin)], "device": device, "tensor_parallel_size": 2}
    if "runners" in PLACES[place]:
        settings["runner"] = "dies"
    began = time.monotonic()
    with pytest.raises(EngineDead, match=r"rank 1 \(process \d+\) was killed by SIGKILL"):
        start_and_ask(whole, settings)
    assert time.monotonic() - began < 10


def start_and_ask(path: Path, settings: dict) -> None:
    with LLM(path, **settings) as llm:
        llm.generate(PROMPT, plain(), use_tqdm=False)


def test_the_one_of_three_that_was_killed_is_named(whole, device):
    with LLM(whole, tensor_parallel_size=3, device=device) as llm:
        stream = llm.stream(PROMPT, plain(max_tokens=200))
        next(stream)
        victim = llm.engine.executor._ranks._processes[2]
        victim.kill()
        began = time.monotonic()
        with pytest.raises(EngineDead, match=rf"rank 2 \(process {victim.pid}\) was killed"):
            list(stream)
        assert time.monotonic() - began < 10


def test_an_engine_that_nobody_closes_ends_its_ranks(whole, device):
    llm = LLM(whole, tensor_parallel_size=2, device=device)
    llm.generate(PROMPT, plain(), use_tqdm=False)
    (rank,) = ranks_of(os.getpid())
    del llm
    gc.collect()
    assert rank not in ranks_of(os.getpid())


def test_an_engine_that_is_closed_with_requests_in_flight(whole, device):
    llm = LLM(whole, tensor_parallel_size=2, device=device, executor={"overlap": "on"})
    for _ in range(3):
        llm.engine.add(PROMPT, plain(max_tokens=200))
    for _ in range(3):
        llm.engine.step()
    began = time.monotonic()
    llm.close()
    assert time.monotonic() - began < 4


def test_an_interrupted_step_of_several_ranks_ends_the_engine(whole, device, monkeypatch):
    with LLM(whole, tensor_parallel_size=2, device=device) as llm:
        worker = llm.engine.executor._worker
        original, calls = worker.forward, []

        def forward(batch):
            calls.append(batch)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return original(batch)

        monkeypatch.setattr(worker, "forward", forward)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPT, plain(), use_tqdm=False)
        with pytest.raises(EngineDead, match="interrupted in a step"):
            llm.generate(PROMPT, plain(), use_tqdm=False)


def test_ctrl_c_between_steps_leaves_several_ranks_alive(whole, device, monkeypatch):
    with LLM(whole, tensor_parallel_size=2, device=device) as llm:
        expected = llm.generate(PROMPT, plain(), use_tqdm=False)[0].outputs[0].token_ids
        worker = llm.engine.executor._worker
        original, calls = worker.forward, []

        def forward(batch):
            calls.append(batch)
            if len(calls) == 3:
                os.kill(os.getpid(), signal.SIGINT)
            return original(batch)

        monkeypatch.setattr(worker, "forward", forward)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPT, plain(), use_tqdm=False)
        monkeypatch.undo()
        assert llm.engine.statistics()["pages_owned"] == 0
        (output,) = llm.generate(PROMPT, plain(), use_tqdm=False)
        assert output.outputs[0].token_ids == expected


def test_local_ranks_need_no_port_of_their_own(whole, device, monkeypatch):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        with (
            LLM(whole, tensor_parallel_size=2, device=device) as first,
            LLM(whole, tensor_parallel_size=2, device=device) as second,
        ):
            texts = [llm.generate("a", plain())[0].outputs[0].text for llm in (first, second)]
    assert texts[0] == texts[1]


def test_a_mistake_that_only_ranks_can_find_is_told_as_one(whole, device, tmp_path):
    plugin = tmp_path / "picky.py"
    plugin.write_text(
        textwrap.dedent(
            f"""
            from core.errors import UserError
            from core.registry import runners
            from plugins.runners.eager import Eager
            RANK = {PROGRAM!r} in open("/proc/self/cmdline").read()

            @runners.register("picky")
            class Picky(Eager):
                def prepare(self, step, limits):
                    if RANK:
                        raise UserError("this card is too small. Take another.")
                    super().prepare(step, limits)
            """
        )
    )
    with pytest.raises(UserError, match=r"^this card is too small. Take another\.$"):
        LLM(whole, tensor_parallel_size=2, device=device, plugins=[str(plugin)], runner="picky")


@pytest.mark.parametrize("when", ["loading", "generating"])
def test_ctrl_c_on_the_command_line_leaves_no_rank(whole, tmp_path, when):
    plugin = tmp_path / "slow.py"
    plugin.write_text(
        textwrap.dedent(
            f"""
            import sys, time
            from core.registry import runners
            from plugins.runners.eager import Eager

            @runners.register("slow")
            class Slow(Eager):
                def prepare(self, step, limits):
                    if {when == "loading"}:
                        print("here", file=sys.stderr, flush=True)
                        time.sleep(60)
                    super().prepare(step, limits)

                def run(self, batch):
                    time.sleep(0.05)
                    print("here", file=sys.stderr, flush=True)
                    return super().run(batch)
            """
        )
    )
    words = [
        f"model.path={whole}",
        "model.device=cpu",
        "parallel.tensor=2",
        "runner=slow",
        f"plugins=[{plugin}]",
        "run.prompt=hi",
        "run.params={max_tokens: 200}",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "core.run", *words],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    assert process.stderr is not None
    while "here" not in process.stderr.readline():
        assert process.poll() is None
    below = ranks_of(process.pid)
    assert len(below) == 1
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=20)
    assert process.returncode == 130, error
    assert "Traceback" not in error
    assert "resource_tracker" not in error
    assert not any(Path(f"/proc/{pid}").exists() for pid in below)
