"""Tells Ctrl-C from a KeyboardInterrupt that somebody's code has raised by itself."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class CtrlC:
    """Within the block, watches for Ctrl-C: what the user pressed must not be lost.

    Code that is run there may raise KeyboardInterrupt without it, and may swallow the one that
    came of it; the traceback tells neither. What does is the signal, of which Python's handler, or
    whose ever is there, makes the exception. Signals belong to the main thread; in another,
    nothing is ever pressed.
    """

    def __init__(self) -> None:
        self.pressed = False
        self._former: Any = None

    def __enter__(self) -> CtrlC:
        former = signal.getsignal(signal.SIGINT)
        if callable(former) and threading.current_thread() is threading.main_thread():
            self._former = former
            signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, *_: object) -> None:
        # unless the code in the block has put its own in our place
        if self._former is not None and signal.getsignal(signal.SIGINT) == self._press:
            signal.signal(signal.SIGINT, self._former)

    def heed(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed in the block."""
        if self.pressed:
            raise KeyboardInterrupt

    def _press(self, number: int, frame: FrameType | None) -> None:
        try:
            self._former(number, frame)
        except KeyboardInterrupt:
            self.pressed = True
            raise
