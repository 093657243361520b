"""Says which import a run is waiting for when one does not end, and ends it where that is sound."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

from core.errors import UserError

log = logging.getLogger("plait")

VARIABLE = "PLAIT_PLUGIN_SECONDS"
FIRST_WORD = 3.0  # seconds until something is said
RETRY = 1.0  # seconds until what went on all the same is interrupted again
TICK = 0.1  # seconds between two looks
SHARED = {
    *("core", "plugins", "models", "torch", "triton", "numpy", "transformers", "tokenizers"),
    *("safetensors", "huggingface_hub", "pluggy", "omegaconf", "yaml", "jinja2", "rich"),
}
"""What a run imports anyway: waiting for it costs a plugin nothing, and half an import of it would
spoil it for the rest of the process."""


class Unending(BaseException):
    """Thrown into an import that does not end. Not an Exception, so that `except Exception` of
    whoever is being imported does not keep it."""


@dataclass
class _Turn:
    """One import that is being watched."""

    subject: str
    module: str
    remedy: str
    began: float
    ends: float  # when it is next interrupted, by the clock of `spent`
    spent: float = 0.0  # seconds in which it was not busy with what is shared
    told: bool = False
    where: str = ""
    throws: int = 0
    due: bool = False  # the signal that is on its way is for this one


def seconds_allowed() -> float:
    """How long one plugin may hold up a start. UserError when PLAIT_PLUGIN_SECONDS is no time."""
    text = os.environ.get(VARIABLE) or "10"
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise UserError(
            f"{VARIABLE} is {text!r}: it must be a number of seconds above 0, or inf to wait "
            "without end."
        )
    return seconds


@contextmanager
def told_if_long(subject: str, path: str) -> Iterator[None]:
    """Say so when a component takes long to be imported. It was chosen, so it is not ended."""
    module = path.partition(":")[0]
    if module in sys.modules or module.partition(".")[0] in SHARED:
        yield
        return
    with (
        Patience(seconds_allowed(), throws=False) as patience,
        patience.on(subject, module, "Ctrl-C ends the run."),
    ):
        yield


class Patience:
    """Watches one import after the other, from a thread of its own, until `close`.

    An import can be ended from outside only by an exception in its own thread, and what waits in
    a system call hears of one only through a signal, which Python delivers to the main thread. So
    that is where imports are ended, as Ctrl-C would do it: Python forgets the half-imported
    modules, and no lock stays taken. In other threads, and inside C code that does not listen, all
    that is left is to say what is happening.

    `throws`: end what takes longer than `limit` seconds. The signal is SIGURG, which by default
    does nothing, so that one that comes late does no harm. Without it, whoever imports is patient,
    and something is said after `limit` seconds.
    """

    def __init__(self, limit: float, *, throws: bool = True) -> None:
        self.limit = limit
        self._first_word = min(limit, FIRST_WORD) if throws else limit
        self._turn: _Turn | None = None
        self._over = threading.Event()
        self._thread = threading.get_ident()
        self._restore: Callable[[], Any] | None = None
        main = threading.current_thread() is threading.main_thread()
        if throws and main and hasattr(signal, "pthread_kill"):
            former = signal.getsignal(signal.SIGURG)
            if former is not None:  # else somebody's C code has it, which we could not put back
                signal.signal(signal.SIGURG, partial(self._ring, former))
                self._restore = partial(signal.signal, signal.SIGURG, former)
        self._watcher = threading.Thread(target=self._watch, name="plait-patience", daemon=True)
        self._watcher.start()

    def close(self) -> None:
        """Stop watching. May be repeated."""
        self._over.set()
        self._watcher.join()
        if self._restore:
            self._restore()
            self._restore = None

    def __enter__(self) -> Patience:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def on(self, subject: str, module: str, remedy: str) -> Iterator[None]:
        """Watch the import of `module` that the block does.

        UserError when it was ended. `subject` is who is waited for, and `remedy` the sentence that
        says how to do without.
        """
        turn = self._turn = _Turn(subject, module, remedy, time.monotonic(), self.limit)
        try:
            yield
        except Unending as error:
            raise UserError(
                f"it hung for {self.limit:g} s at {turn.where}. "
                f"({VARIABLE} sets how long is waited.)"
            ) from error
        finally:
            self._turn = None

    def _ring(self, former: Any, number: int, frame: FrameType | None) -> None:
        turn = self._turn
        if turn is not None and turn.due:
            turn.due = False
            raise Unending
        if callable(former):
            former(number, frame)

    def _watch(self) -> None:
        last = time.monotonic()
        while not self._over.wait(TICK):
            now, before = time.monotonic(), last
            last = now
            turn = self._turn
            if turn is None:
                continue
            stack = list(_frames(sys._current_frames().get(self._thread)))
            if not any(_imports(frame, SHARED) for frame in _until(stack, turn.module)):
                # a machine that stood still in between was not waiting for anybody
                turn.spent += min(now - max(before, turn.began), 2 * TICK)
            if not turn.told and turn.spent >= self._first_word:
                turn.told = True
                end = f"It is given up after {self.limit:g} s ({VARIABLE}). "
                self._say("waiting for {} at {}. " + end * bool(self._restore), turn, stack)
            if self._restore and turn.spent >= turn.ends:
                turn.where = turn.where or _place(stack, turn.module)
                turn.ends, turn.throws, turn.due = turn.spent + RETRY, turn.throws + 1, True
                signal.pthread_kill(self._thread, signal.SIGURG)
                if turn.throws == 3:
                    stays = "{} does not let itself be interrupted at {}. End this run. "
                    self._say(stays, turn, stack)

    def _say(self, sentence: str, turn: _Turn, stack: list[FrameType]) -> None:
        place = _place(stack, turn.module)
        log.warning("%s%s", sentence.format(turn.subject, place), turn.remedy)


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """The innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _name(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _imports(frame: FrameType, tops: set[str]) -> bool:
    return frame.f_code.co_name == "<module>" and _name(frame).partition(".")[0] in tops


def _until(stack: list[FrameType], module: str) -> list[FrameType]:
    """The frames within the outermost one of the watched module's package: what it led to."""
    top = module.partition(".")[0]
    own = [n for n, frame in enumerate(stack) if _name(frame).partition(".")[0] == top]
    return stack[: own[-1]] if own else []


def _place(stack: list[FrameType], module: str) -> str:
    """The line of the watched package that the import is at, and where that line is waiting."""
    if not stack:
        return "its end"
    top = module.partition(".")[0]
    shown = [frame for frame in stack if not frame.f_code.co_filename.startswith("<frozen")]
    own = next((frame for frame in shown if _name(frame).partition(".")[0] == top), None)
    inner = (shown or stack)[0]
    if own is None or own is inner:
        return f"{inner.f_code.co_filename}, line {inner.f_lineno}"
    return (
        f"{own.f_code.co_filename}, line {own.f_lineno} "
        f"(in {inner.f_code.co_filename}, line {inner.f_lineno})"
    )
