"""A server as a user starts it: the command, in a process of its own, on any free port."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATIENCE = 90  # seconds until it listens


@contextmanager
def served(*words: str) -> Iterator[str]:
    """`python -m core.run configs/qwen3-serve.yaml WORDS`, gone after the block. -> its URL."""
    command = [sys.executable, "-m", "core.run", "configs/qwen3-serve.yaml", "run.port=0", *words]
    with tempfile.TemporaryFile("w+") as told:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=told, stderr=told, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        try:
            yield _address(process, told.fileno())
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            finally:
                process.kill()
                process.wait()


def _address(process: subprocess.Popen[bytes], told: int) -> str:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        text = os.pread(told, 100_000, 0).decode(errors="replace")
        if found := re.search(r"is served at (http://\S+)", text):
            return found[1]
        assert process.poll() is None, text
        time.sleep(0.05)
    raise AssertionError(f"the server does not start:\n{text}")
