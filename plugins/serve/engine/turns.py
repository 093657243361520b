"""Streams with news take turns, so that the event loop looks at its sockets in between."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

AT_ONCE = 8  # streams that a round of the loop wakes


class Turns:
    """Calls who stands in line, in the order of coming, a few in each round of the event loop.

    Without it, a step of an engine or a backlog would wake all streams in one round, and a new
    request, which takes some rounds to be read, queued and answered, would wait for all of them
    each time.
    """

    def __init__(self) -> None:
        self._line: deque[Callable[[], None]] = deque()

    def enter(self, call: Callable[[], None]) -> None:
        """Stand in line. `call` is called soon, never from within this."""
        self._line.append(call)
        if len(self._line) == 1:
            asyncio.get_running_loop().call_soon(self._round)

    def _round(self) -> None:
        for _ in range(min(AT_ONCE, len(self._line))):
            self._line.popleft()()
        if self._line:
            asyncio.get_running_loop().call_soon(self._round)
