"""A Chrome trace file that is whole at every moment, however the process ends.

Source of the format: "Trace Event Format", the JSON array of chrome://tracing and ui.perfetto.dev.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

STEPS, REQUESTS = 1, 2  # what the viewer shows as two processes, each with tracks of its own
END = b"\n]\n"


class TraceFile:
    """Events go straight to the file: nothing of them stays in memory.

    Each write begins where the closing bracket was and ends with a new one, so that the file is
    valid JSON after Ctrl-C, an error, or the end of the process without any warning.
    """

    def __init__(self, path: Path) -> None:
        """Replaces what is at `path`."""
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._lock = threading.Lock()
        self._at = os.pwrite(self._file, b"[" + END, 0) - len(END)
        self._first = True
        self.write(_name("process", STEPS, 0, "engine"), _name("process", REQUESTS, 0, "requests"))

    def write(self, *events: dict[str, Any]) -> None:
        """Append events in one write. OSError if the disk takes no more."""
        text = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
        data = (b"\n" if self._first else b",\n") + text.encode()
        with self._lock:
            whole = data + END
            written = os.pwrite(self._file, whole, self._at)
            if written < len(whole):  # a full disk: leave the file as it was
                os.ftruncate(self._file, self._at)
                os.pwrite(self._file, END, self._at)
                raise OSError(f"{self.path}: the disk is full")
            self._at += len(data)
            self._first = False

    def close(self) -> None:
        """May be called again."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _name(kind: str, process: int, track: int, name: str) -> dict[str, Any]:
    return {
        "ph": "M", "name": f"{kind}_name", "pid": process, "tid": track, "args": {"name": name},
    }  # fmt: skip


def track_name(process: int, track: int, name: str) -> dict[str, Any]:
    """Names a track."""
    return _name("thread", process, track, name)


def slice_(
    process: int, track: int, name: str, start: float, stop: float, **args: Any
) -> dict[str, Any]:
    """Something that lasts from `start` to `stop`, in microseconds."""
    return {
        "ph": "X", "name": name, "pid": process, "tid": track,
        "ts": start, "dur": round(max(stop - start, 0.0), 1), "args": args,
    }  # fmt: skip


def instant(process: int, track: int, name: str, at: float) -> dict[str, Any]:
    """A mark on a track."""
    return {"ph": "i", "s": "t", "name": name, "pid": process, "tid": track, "ts": at}


def counter(name: str, at: float, **values: int) -> dict[str, Any]:
    """What some numbers are from now on."""
    return {"ph": "C", "name": name, "pid": STEPS, "tid": 0, "ts": at, "args": values}
