"""Hands what a step gives to the calls that wait for it: several calls may share one engine."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from core.errors import UserError

if TYPE_CHECKING:
    from core.engine import Engine
    from core.outputs import RequestOutput


class Deliveries:
    """Runs the steps for everybody. Outputs that somebody else waits for are kept for him."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._boxes: dict[str, deque[RequestOutput]] = {}
        self._left: deque[str] = deque()  # requests of streams that somebody let go of

    def expect(self, id: str, box: deque[RequestOutput]) -> None:
        """Outputs of this request go into `box` from now on."""
        self._boxes[id] = box

    def forget(self, id: str) -> None:
        """Nobody waits for this request any more. It is aborted if it still runs."""
        self._boxes.pop(id, None)
        self.engine.abort(id)

    def leave(self, id: str) -> None:
        """`forget` at the next turn. Any thread may call this, in the middle of anything."""
        self._left.append(id)

    def settle(self) -> None:
        """Forget those who were left. Ctrl-C waits for its end."""
        with _whole():
            self._forget_left()

    def step(self) -> None:
        """One step of the engine, its outputs in their boxes. Ctrl-C waits for its end."""
        with _whole():
            self._forget_left()
            for output in self.engine.step():
                if (box := self._boxes.get(output.request_id)) is not None:
                    box.append(output)

    def _forget_left(self) -> None:
        while self._left:
            self.forget(self._left.popleft())


class Stream(Iterator["RequestOutput"]):
    """The outputs of one request, as they come. `close` aborts the rest, and so does letting go of
    it, before the engine's next step."""

    def __init__(self, deliveries: Deliveries, id: str, owner: object) -> None:
        """`owner`: whoever closes the engine when it is let go of; it stays while this is used."""
        self._deliveries, self._id, self._owner = deliveries, id, owner
        self._box: deque[RequestOutput] = deque()
        self._open = True
        deliveries.expect(id, self._box)

    def __next__(self) -> RequestOutput:
        if not self._open:
            raise StopIteration
        try:
            while not self._box:
                if not self._deliveries.engine.runs(self._id):
                    self._deliveries.engine.check_alive()
                    raise UserError(f"request {self._id} was aborted while its stream was read.")
                self._deliveries.step()
        except BaseException:
            self.close()
            raise
        output = self._box.popleft()
        if output.finished:
            self.close()
        return output

    def close(self) -> None:
        """Abort the request if it still runs. May be called again."""
        if self._open:
            self._open = False
            self._deliveries.forget(self._id)

    def __del__(self) -> None:
        # the garbage collector calls this wherever it is, within a scheduler's plan say
        if getattr(self, "_open", False):
            self._open = False
            self._deliveries.leave(self._id)


@contextmanager
def _whole() -> Iterator[None]:
    """The block is not cut in two by Ctrl-C, which raises behind it; a second Ctrl-C does at once.

    Where somebody handles the signal in his own way, or in another thread, nothing changes.
    """
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    pressed = False

    def press(number: int, frame: Any) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    signal.signal(signal.SIGINT, press)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if pressed:
        raise KeyboardInterrupt
