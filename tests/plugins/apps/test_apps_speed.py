"""Times that the apps promise, on a machine that does nothing else."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from core.settings import load
from plugins.apps.bench.host import measure_steps

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.speed


@pytest.mark.parametrize(("running", "microseconds"), [(16, 250), (64, 300), (256, 500)])
def test_the_host_needs_a_fraction_of_a_step(running: int, microseconds: int) -> None:
    config = load(ROOT / "configs" / "qwen3-bench.yaml", ["model.device=cpu"])

    assert measure_steps(config, running) < microseconds


def test_a_dry_run_answers_in_seconds() -> None:
    size = ROOT / "models" / "qwen3" / "sizes" / "Qwen3-32B"
    words = ["configs/toy-tp2.yaml", f"model.path={size}", "parallel.tensor=8"]
    start = time.monotonic()

    subprocess.run(
        [sys.executable, "-m", "core.run", *words], cwd=ROOT, check=True, capture_output=True
    )

    assert time.monotonic() - start < 4
