"""The example that looks inside the model which ships."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/look_inside.py"), *words],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_names_the_tokens_that_each_head_looks_at() -> None:
    lines = run("--layer", "1", "Mole and Rat", "--best", "1").splitlines()
    heads = [line for line in lines if line.startswith("│")]

    assert "layer 1, seen from" in lines[0]
    assert len(heads) == 8
    assert all(line.count("@") == 1 for line in heads)
