"""What a server holds: memory of its processes, and pages and requests of its engine."""

from __future__ import annotations

import re
from pathlib import Path

import httpx


def resident(pid: int) -> int:
    """Bytes of memory that a process occupies."""
    found = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.M)
    assert found is not None
    return int(found[1]) * 1024


def metrics(url: str) -> dict[str, float]:
    """The metrics without buckets, by their names without `vllm:` and labels, summed."""
    told: dict[str, float] = {}
    for line in httpx.get(f"{url}/metrics", timeout=60).text.splitlines():
        if not line.startswith("#") and "_bucket{" not in line:
            name, _, value = line.rpartition(" ")
            name = name.partition("{")[0].removeprefix("vllm:")
            told[name] = told.get(name, 0.0) + float(value)
    return told
