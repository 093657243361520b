"""What an engine could leave behind: processes of ranks, and addresses on which it listens."""

from __future__ import annotations

import os
from pathlib import Path

PROGRAM = "plugins.executors.rank_process"


def ranks_of(pid: int) -> set[int]:
    """Processes of ranks that this process or one below it has started."""
    found, parents = set(), {pid}
    while parents:
        inner = set()
        for parent in parents:
            for task in Path(f"/proc/{parent}/task").glob("*/children"):
                try:
                    inner |= set(map(int, task.read_text().split()))
                except OSError:
                    continue
        for child in inner:
            try:
                if PROGRAM in Path(f"/proc/{child}/cmdline").read_text():
                    found.add(child)
            except OSError:
                continue
        parents = inner
    return found


def listening() -> set[str]:
    """Local addresses on which this process listens."""
    mine = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            mine.add(os.readlink(link))
        except OSError:
            continue
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]
    ]
    return {line[1] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in mine}
