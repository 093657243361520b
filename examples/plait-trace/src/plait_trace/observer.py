"""Answers the hooks of a run, and says in a trace file what happened when."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.errors import UserError
from core.hooks import hookimpl
from plait_trace.file import STEPS, TraceFile, counter, slice_, track_name
from plait_trace.requests import Requests

if TYPE_CHECKING:
    from core.config import Config
    from core.engine import Engine
    from core.outputs import RequestOutput
    from core.types import Request, StepOutput, StepPlan

log = logging.getLogger("plait")

VARIABLE, USUAL = "PLAIT_TRACE", "plait-trace.json"
PAGES = ("free", "cached", "owned")


class Observer:
    """One file from the start of an engine to the end of the last one that runs beside it."""

    def __init__(self) -> None:
        self._engines: list[Engine] = []
        self._file: TraceFile | None = None
        self._written: Counter[Path] = Counter()  # files by the place that was asked for

    @hookimpl
    def configure(self, config: Config) -> None:
        """Refuse a place where nothing can be written, before the model is loaded."""
        path = self._place()
        if not path.parent.is_dir() or path.is_dir():
            raise UserError(
                f"{VARIABLE} is {str(path)!r}: there is no such folder, or no file can be there. "
                f"Name a file, such as {VARIABLE}={USUAL}."
            )

    @hookimpl
    def engine_started(self, engine: Engine) -> None:
        self._engines.append(engine)
        if self._file is not None:
            return
        self._zero = self._last = time.monotonic()
        self._requests = Requests(self._micros)
        try:
            self._file = TraceFile(self._place())
        except OSError as error:
            raise UserError(f"plait-trace cannot write its file: {error}.") from error
        self._written[_asked()] += 1
        log.info("tracing to %s", self._file.path)
        self._write(track_name(STEPS, 0, "steps"))

    @hookimpl
    def step_done(self, plan: StepPlan, output: StepOutput, seconds: float) -> None:
        now = time.monotonic()
        # the next step is launched before this one is over: on the track each begins when the one
        # before ends
        start, self._last = max(now - seconds, self._last), now
        counts = plan.counts.tolist()
        events = self._requests.step(plan, now - seconds, now)
        statistics = self._statistics()
        self._write(
            *events,
            slice_(
                STEPS, 0, f"step {plan.number}", self._micros(start), self._micros(now),
                requests=len(counts), tokens=sum(counts), of_one_token=counts.count(1),
                sampled=int(plan.sample.sum()), since_launch_us=round(1e6 * seconds),
            ),
            counter("tokens", self._micros(start), computed=sum(counts)),
            counter(
                "requests", self._micros(now),
                running=statistics.get("running", 0), waiting=statistics.get("waiting", 0),
            ),
            counter(
                "pages", self._micros(now),
                **{name: statistics.get(f"pages_{name}", 0) for name in PAGES},
            ),
        )  # fmt: skip

    @hookimpl
    def request_done(self, request: Request, output: RequestOutput) -> None:
        self._write(*self._requests.done(request, time.monotonic()))

    @hookimpl
    def engine_stopped(self, engine: Engine) -> None:
        if engine in self._engines:
            self._engines.remove(engine)
        if not self._engines and self._file is not None:
            now = time.monotonic()
            self._write(*self._requests.lost(now), counter("tokens", self._micros(now), computed=0))
            self._close()

    def _place(self) -> Path:
        """Where the next file goes; later ones of a process get a number."""
        path = _asked()
        number = self._written[path]
        return path.with_stem(f"{path.stem}-{number + 1}") if number else path

    def _micros(self, at: float) -> float:
        return round(1e6 * (at - self._zero), 1)

    def _statistics(self) -> dict[str, int]:
        """The counters of all engines together; a scheduler may lack some."""
        total: dict[str, int] = {}
        for engine in self._engines:
            for name, value in engine.statistics().items():
                total[name] = total.get(name, 0) + value
        return total

    def _write(self, *events: dict[str, Any]) -> None:
        """A run does not end because its trace cannot grow."""
        if self._file is None or not events:
            return
        try:
            self._file.write(*events)
        except OSError as error:
            log.error("the trace ends here: %s", error)
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


def _asked() -> Path:
    return Path(os.environ.get(VARIABLE) or USUAL).absolute()
