"""Under torchrun: the same text, a clean end, and mistakes told once, in a sentence."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from core import LLM, EngineDead
from core.told_once import first_to_tell, follows
from tests.acceptance.broken import call, whole

__all__ = ["call", "whole"]

ROOT = Path(__file__).parents[2]
PARAMS = "run.params={max_tokens: 12, temperature: 0}"


def torchrun(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    return subprocess.run(
        [*command, "--standalone", "-m", "core.run", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make this process one of torchrun's."""

    def rank(number: int, size: int = 2, port: int | str = 1) -> None:
        for name, value in {
            "RANK": number,
            "WORLD_SIZE": size,
            "LOCAL_RANK": number,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }.items():
            monkeypatch.setenv(name, str(value))

    return rank


def test_two_ranks_write_what_one_writes_and_end_well(call, whole):
    alone = call.on(whole, PARAMS)
    shared = set(os.listdir("/dev/shm"))
    words = (f"model.path={whole}", "model.device=cpu", "run.prompt=hi", PARAMS)
    seen = torchrun(*words, "parallel.tensor=2")
    assert seen.returncode == 0, seen.stderr
    assert seen.stdout == alone.out
    assert "Traceback" not in seen.stderr
    assert "leaked" not in seen.stderr
    assert set(os.listdir("/dev/shm")) <= shared
    assert seen.stderr.count("ready after") <= 1


def test_a_mistake_is_told_once(whole):
    words = (f"model.path={whole}", "model.device=cpu", "run.prompt=hi", "sampler=minp")
    seen = torchrun(*words, "parallel.tensor=2")
    assert seen.returncode == 1  # torchrun's own
    assert seen.stderr.count("no sampler is called 'minp'") == 1
    assert "exitcode  : 2" in seen.stderr


def test_another_number_of_processes_than_ranks(call, whole, rank):
    rank(0, size=3)
    said = call.mistake(whole, "parallel.tensor=2")
    assert "torchrun started 3 processes and parallel.tensor is 2. Make them equal" in said


def test_an_interrupted_step_ends_the_engine(whole, rank, monkeypatch):
    """The others are within the step, and would take a further plan for a part of it."""
    rank(0, size=1, port=0)
    sent = []

    def interrupted(plan):
        raise KeyboardInterrupt

    with LLM(whole, device="cpu", executor="torchrun", cache={"pages": 8}) as llm:
        executor = llm.engine.executor
        monkeypatch.setattr(executor._plans, "broadcast_object", sent.append)
        with monkeypatch.context() as patch:
            patch.setattr(executor._worker, "launch", interrupted)
            with pytest.raises(KeyboardInterrupt):
                llm.generate([[5, 6]], use_tqdm=False)
        assert len(sent) == 1
        with pytest.raises(EngineDead, match=r"interrupted in a step\. Start the ranks anew"):
            llm.generate([[5, 6]], use_tqdm=False)
        assert len(sent) == 1


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"])
def test_an_environment_that_is_no_number(call, whole, rank, monkeypatch, name):
    rank(0)
    monkeypatch.setenv(name, "many")
    said = call.mistake(whole, "parallel.tensor=2")
    assert f"{name} is 'many' in the environment. It must be a number" in said


def test_an_environment_without_torchrun(call, whole, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    said = call.mistake(whole, "executor=torchrun")
    assert "executor torchrun needs RANK" in said
    assert "Start with torchrun --nproc-per-node N -m core.run CONFIG.yaml" in said


def test_a_port_that_is_taken(call, whole, rank):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        rank(0, port=port)
        said = call.mistake(whole, "parallel.tensor=2")
    assert f"rank 0 cannot meet the others at 127.0.0.1, port {port}" in said
    assert "Choose a free port, say with torchrun --master-port N" in said


def test_who_finds_a_mistake_first_tells_it(rank, monkeypatch):
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    assert first_to_tell("one")
    assert first_to_tell("one")  # there is nobody else
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    rank(1, port=store.port)
    assert follows()
    assert first_to_tell("one")
    rank(0, port=store.port)
    assert not follows()
    assert not first_to_tell("one")
    assert first_to_tell("two")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert first_to_tell("one")


def test_a_rank_that_cannot_ask_tells_it(rank, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setattr("core.told_once.WAIT", timedelta(seconds=0.2))
    rank(1, port=port)  # nobody listens any more
    assert first_to_tell("one")
    monkeypatch.setenv("MASTER_PORT", "none")
    assert first_to_tell("one")
