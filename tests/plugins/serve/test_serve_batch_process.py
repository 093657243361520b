"""`run: batch` as a process: killed at any moment, out of room, or left in peace."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("msgspec")

from core import LLM, SamplingParams
from tests.plugins.serve.test_serve_batch import answers_in, completion, write
from tests.tiny import IM_END, save_tiny

ROOT = Path(__file__).parents[3]
REQUESTS = 60
BEGINNING = b'{"id":"batch_req_'


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("batch_process"), eos=[IM_END])


@pytest.fixture(scope="module")
def words(checkpoint: Path) -> list[str]:
    """Settings of an engine with few rows, so that requests wait."""
    return [
        f"model.path={checkpoint}", "model.device=cpu", "model.dtype=float32", "executor=local",
        "cache.page_size=4", "cache.pages=256", "scheduler.max_num_seqs=8", "run=batch",
    ]  # fmt: skip


def asked(number: int) -> dict[str, Any]:
    return {"prompt": [number % 250, 7, 9], "max_tokens": 24, "seed": number, "ignore_eos": True}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("requests") / "in.jsonl"
    return write(path, *(completion(str(i), **asked(i)) for i in range(REQUESTS)))


@pytest.fixture(scope="module")
def expected(words: list[str]) -> dict[str, str]:
    """What offline generation writes for the same requests."""
    params = [
        SamplingParams(temperature=1.0, max_tokens=24, seed=i, ignore_eos=True)
        for i in range(REQUESTS)
    ]
    from core import settings

    with LLM.open(settings.load(None, words[:-1])) as llm:
        outputs = llm.generate([asked(i)["prompt"] for i in range(REQUESTS)], params)
    return {str(i): output.outputs[0].text for i, output in enumerate(outputs)}


def command(words: list[str], source: Path, target: Path) -> list[str]:
    files = [f"run.input={source}", f"run.output={target}"]
    return [sys.executable, "-m", "core.run", *words, *files]


def texts(path: Path) -> dict[str, str]:
    return {
        name: each["response"]["body"]["choices"][0]["text"]
        for name, each in answers_in(path).items()
    }


def children(process: subprocess.Popen[bytes]) -> list[int]:
    return list(
        map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
    )


@pytest.mark.slow
def test_killed_at_any_moment_nothing_is_lost_or_doubled(
    words: list[str], source: Path, expected: dict[str, str], tmp_path: Path
) -> None:
    target = tmp_path / "out.jsonl"
    for wanted in (1, 25):
        with subprocess.Popen(command(words, source, target), cwd=ROOT) as process:
            deadline = time.monotonic() + 60
            while not target.exists() or target.read_bytes().count(b"\n") < wanted:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.002)
            engine = children(process)
            process.send_signal(signal.SIGKILL)
        for pid in engine:
            while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
                time.sleep(0.02)
            assert not os.path.exists(f"/proc/{pid}"), "the engine outlives its owner"
    with target.open("ab") as file:
        file.write(b'{"id":"batch_req_half","custom_id":"59","respo')  # as a power cut may leave it
    done = subprocess.run(command(words, source, target), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"{REQUESTS} requests, " in done.stderr
    assert texts(target) == expected


@pytest.mark.slow
def test_on_a_full_disk_it_says_so_and_goes_on_when_there_is_room(
    words: list[str], source: Path, expected: dict[str, str], tmp_path: Path
) -> None:
    target = tmp_path / "out.jsonl"

    def little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, 9_000))

    told = subprocess.run(
        command(words, source, target),
        cwd=ROOT,
        capture_output=True,
        text=True,
        preexec_fn=little_room,
    )
    assert told.returncode == 2
    there = target.read_bytes()
    assert there.endswith(b"\n")
    assert f"{there.count(BEGINNING)} answers are there" in told.stderr
    assert "Make room and run the same again" in told.stderr
    assert "Traceback" not in told.stderr
    done = subprocess.run(command(words, source, target), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert target.read_bytes().startswith(there)
    assert texts(target) == expected
