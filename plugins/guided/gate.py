"""Tries forms out in a process of its own before the engine reads them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from threading import Lock
from typing import IO, TYPE_CHECKING, Any

from core.children import command, module_path

if TYPE_CHECKING:
    from plugins.guided.form import Form

PATIENCE = 60.0  # seconds by the clock, on however busy a machine


class Gate:
    """Strangers' forms can take minutes, gigabytes, or overflow the stack, also while they become
    grammars. So a process is asked that may be lost. It is started when it is first needed, and
    again when one was lost."""

    def __init__(self, seconds: float) -> None:
        """`seconds` of processor time that one form may take."""
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = Lock()

    def reason(self, form: Form, names: Sequence[str] = ()) -> str | None:
        """Why a form cannot be served; None when it can. `names`: of the tokens that it may
        name; they are those of the first call."""
        with self._lock:
            process = self._started(names)
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                _send(process.stdin, {"form": asdict(form), "seconds": self._seconds})
                answer = _line(process.stdout)
            except BrokenPipeError:
                answer = b""
            if answer:
                reason: str | None = json.loads(answer)["reason"]
                return reason
            status = self._end(process)
        if status == -signal.SIGPROF:
            return f"reading it takes more than {self._seconds:g} s of computing. Simplify it."
        return "reading it takes more memory or nesting than there is. Simplify it."

    def close(self) -> None:
        """End the process. May be called again, and while nobody asks."""
        with self._lock:
            if self._process is not None:
                self._end(self._process)

    def _started(self, names: Sequence[str]) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                command("plugins.guided.trial"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": module_path()},
                start_new_session=True,  # Ctrl-C is the engine's to handle; it ends with its input
            )
            with suppress(BrokenPipeError):  # the next to write is told
                assert self._process.stdin is not None
                _send(self._process.stdin, {"names": list(names)})
        return self._process

    def _end(self, process: subprocess.Popen[bytes]) -> int:
        self._process = None
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            status = process.wait(1.0)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        process.stdout.close()
        return status


def _send(stream: IO[bytes], message: dict[str, Any]) -> None:
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


def _line(stream: IO[bytes]) -> bytes:
    """The next line, or nothing when there will be none in time."""
    ready, _, _ = select.select([stream], [], [], PATIENCE)
    return stream.readline() if ready else b""
