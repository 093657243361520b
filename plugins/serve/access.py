"""A line in the log for each request: who asked, for what path, how long; not what was said."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("plait")

LONGEST = 200  # characters of a path


class AccessLog:
    """Tells of a request when it has ended: address, method, path without query, status, seconds.

    Nothing of its headers, its query or its body.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, ended = time.monotonic(), 0, False

        async def noted(message: Message) -> None:
            nonlocal status, ended
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)
            ended = message["type"] == "http.response.body" and not message.get("more_body", False)

        try:
            await self._app(scope, receive, noted)
        except Exception:
            if not status:
                status, ended = 500, True  # which is what the client gets
            raise
        finally:
            log.info(
                "%s %s %s: %s in %.3f s",
                (scope.get("client") or ("?",))[0],
                scope["method"],
                _path(scope),
                (status or "no answer") if ended or not status else f"{status}, cut off",
                time.monotonic() - began,
            )


def _path(scope: Scope) -> str:
    """As it was sent, percent signs and all: nothing in it can look like a line of its own."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode("ascii", "backslashreplace")
    return ascii(raw.partition(b"?")[0].decode("latin-1"))[1:-1][:LONGEST]
