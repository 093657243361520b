"""Scripts written for vLLM and nano-vLLM run with nothing but the import line changed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
ROOT = Path(__file__).parents[2]


def moved(name: str) -> str:
    """The text of a script, with the one line changed."""
    text, count = re.subn(
        "^from (vllm|nanovllm) import", "from core import", (SCRIPTS / name).read_text(), flags=re.M
    )
    assert count == 1
    return text


@pytest.fixture
def run(checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run a script in this process, as if from the command line. -> the lines that it printed."""

    def run(name: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", [name, str(checkpoint)])
        exec(compile(moved(name), name, "exec"), {"__name__": "__main__"})
        return capsys.readouterr().out.splitlines()

    return run


def test_the_first_script_of_everybody(run):
    lines = run("quickstart.py")
    assert len(lines) == 4
    assert all(re.match(r"Prompt: '.+', Generated text: '", line) for line in lines)
    assert run("quickstart.py") == lines


def test_conversations(run):
    assert run("chats.py") == ["<|im_end|> 256 261 <|endoftext|>"]


def test_likelihoods(run):
    first, second = run("likelihoods.py")
    assert first != second
    assert all(float(line.split()[0]) < 0 for line in (first, second))


def test_the_benchmark_of_nano_vllm(run):
    (line,) = run("nano_bench.py")
    assert re.fullmatch(r"Total: \d+tok, Time: [\d.]+s, Throughput: [\d.]+tok/s", line)


def test_two_ranks_need_no_close(checkpoint: Path, tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(moved("two_ranks.py"))
    done = subprocess.run(
        [sys.executable, str(script), str(checkpoint)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\[(\d+, ){5}\d+\]\n", done.stdout)
    assert "Error" not in done.stderr
    assert "Traceback" not in done.stderr
