"""How much of a core the server needs: events a second, and the time to a first byte.

The engine hands out ids and does nothing else; the client is another process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.text import Tokenizer
from tests.plugins.serve.fast_engine import FastEngine
from tests.plugins.serve.running import ROOT, Running, serving

STREAMS, TOKENS = 64, 600
LOAD = ROOT / "tests" / "plugins" / "serve" / "sse_load.py"

pytestmark = pytest.mark.speed


@pytest.fixture(scope="module")
def fast(folder: Path, tokenizer: Tokenizer) -> Iterator[Running]:
    engine = FastEngine(tokenizer.encode("Hello, you there. "), 301)
    with serving(engine, folder) as running:
        yield running


def load(running: Running, path: str, tokens: int, probes: int = 0) -> dict[str, Any]:
    words = [str(running.port), str(STREAMS), str(tokens), path, str(probes)]
    before = time.process_time()
    done = subprocess.run([sys.executable, str(LOAD), *words], capture_output=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    found["events_per_second_of_this_process"] = found["events"] / (time.process_time() - before)
    print(f"\n{path}, {STREAMS} streams of {tokens} tokens:")
    for name, value in found.items():
        print(f"  {name}: {value:,.0f}" if isinstance(value, float) else f"  {name}: {value}")
    return found


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_events_per_second(fast: Running, path: str) -> None:
    load(fast, path, 50)
    best = max((load(fast, path, TOKENS) for _ in range(3)), key=lambda f: f["events_per_second"])
    assert best["events"] >= STREAMS * TOKENS
    assert best["events_per_second"] > 10_000
    assert best["events_per_second_of_this_process"] > 20_000


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_first_byte_comes_soon_beside_running_streams(fast: Running, path: str) -> None:
    fast.engine._pause = STREAMS / 12_000  # 12,000 events a second, if the server keeps up
    try:
        found = load(fast, path, 1000, probes=40)
    finally:
        fast.engine._pause = 0.0
    assert found["probes_beside_streams"]
    assert found["first_byte_of_probes_p50_ms"] < 10
