"""Closes a connection so that its peer, who may still be sending, gets to read the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

QUIET = 1.0  # seconds without a byte after which nobody sends any more


class Lingering:
    """An asyncio transport that ends with its answer instead of with a reset.

    A system that closes a socket which gets bytes afterwards, or holds unread ones, tells the
    peer of a reset, and that may cost the peer the answer (RFC 9112, section 9.6). So this one
    says that nothing more comes, and takes what comes, until the peer ends as well.
    """

    def __init__(
        self, transport: asyncio.Transport, seconds: float, unread: Callable[[], bool]
    ) -> None:
        """`seconds`: how long to linger at most. `unread`: whether the peer may be sending."""
        self._transport, self._seconds, self._unread = transport, seconds, unread
        self.write = transport.write  # without a detour: it is called for every token
        self._until: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._until is not None or self._transport.is_closing()

    def close(self) -> None:
        if self.is_closing():
            return
        if not self._unread() or not self._transport.can_write_eof():
            self._transport.close()
            return
        self._until = asyncio.get_running_loop().time() + self._seconds
        self._transport.write_eof()
        self._transport.resume_reading()
        self.linger()

    def linger(self) -> None:
        """It is closing, and there may be more to come."""
        if self._until is not None:
            self._stop()
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(min(loop.time() + QUIET, self._until), self.end)

    def end(self) -> None:
        """Close, whatever the peer does."""
        self._stop()
        self._transport.close()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
