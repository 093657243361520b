"""The server's application called as a function: no port, no connection, the same answers."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from plugins.serve.protocol.errors import ApiError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

log = logging.getLogger("plait")


async def post(app: ASGIApp, path: str, body: bytes) -> tuple[int, bytes]:
    """What a POST of a JSON body would be answered with: status and body."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ],
        "client": None,
        "server": None,
    }
    coming: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]
    status, found = 0, bytearray()

    async def receive() -> dict[str, Any]:
        if coming:
            return coming.pop()
        await asyncio.Event().wait()  # a client that never leaves
        raise AssertionError

    async def send(message: Any) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            found.extend(message.get("body", b""))

    try:
        await app(scope, receive, send)
    except Exception as error:  # the application has answered with status 500 already
        log.error("a request failed by a fault of Plait", exc_info=error)
        if not status:
            fault = ApiError("The request failed by a fault of Plait.", status=500)
            return fault.status, fault.body()
    return status, bytes(found)
