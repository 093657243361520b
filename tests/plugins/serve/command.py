"""`python -m core.run` as a process that serves: its output, its engine's process, its end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).parents[3]
PROGRAM = "plugins.serve.engine.process"


class Command:
    """A server that is being started. Behind the block it is gone, however the block ends."""

    def __init__(self, *words: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "core.run", *words, "run.port=0"],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def said(self) -> str:
        """What it has written so far."""
        return "".join(self._lines)

    def url(self, within: float = 60) -> str:
        """Where it listens; waits until it does."""
        found: re.Match[str] | None = None
        with self._changed:
            ready = self._changed.wait_for(
                lambda: "served at" in self.said or self.process.poll() is not None, within
            )
        found = re.search(r"served at (http://\S+)", self.said)
        assert ready, f"the server did not start:\n{self.said}"
        assert found is not None, f"the server did not start:\n{self.said}"
        return found[1]

    def engine(self, within: float = 30) -> int:
        """The process of its engine, as soon as there is one."""
        until = time.monotonic() + within
        while time.monotonic() < until:
            for task in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
                for child in task.read_text().split():
                    if PROGRAM in Path(f"/proc/{child}/cmdline").read_text():
                        return int(child)
            time.sleep(0.01)
        raise AssertionError(f"no engine was started:\n{self.said}")

    def tell(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def status(self, within: float) -> int:
        """Its exit status; it gets so many seconds to end."""
        return self.process.wait(within)

    def __enter__(self) -> Command:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(10)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()
