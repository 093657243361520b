"""Connections within bounds: how many, how long a head may be and take, and who is still there."""

from __future__ import annotations

import asyncio
import socket
from http import HTTPStatus
from typing import Any

from plugins.serve.error_answers import answer
from plugins.serve.lingering import Lingering
from plugins.serve.protocol.errors import ApiError

MOST_HEAD = 64 * 1024  # bytes of a request line and headers
LINGERING = 64  # connections beyond the most that may be there to be told so


def protocol(most: int, seconds: float) -> type[asyncio.Protocol]:
    """What uvicorn's `http` is to be: its own fastest protocol, with at most so many connections.

    A head has `seconds` to arrive, from a connection's beginning or the head's first byte; a peer
    that takes nothing, or confirms nothing, for so long has gone. httptools is used where it is
    installed, else h11, which is slower.
    """
    too_late = ApiError(
        f"The headers did not arrive within {seconds:g} seconds.",
        status=408,
        code="request_timeout",
    )
    base: Any
    try:
        from plugins.serve.parsing import ExactProtocol as base
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol as base

    class BoundedProtocol(base):  # type: ignore[misc]
        """Turns away what goes beyond the bounds, with an error object."""

        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self._head = 0  # bytes of a head that is not complete
            self._deadline: asyncio.TimerHandle | None = None
            self._stuck: asyncio.TimerHandle | None = None  # runs while nothing can be sent
            self._answering: Any = None  # the cycle of the latest request that was begun on
            self._deaf = False  # what comes cannot be read any more
            self._application, self.app = self.app, self._answer

        async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
            """The application, whose answers to unread bodies say that they end the connection."""
            cycle = self._answering = receive.__self__
            path, headers = scope["raw_path"], scope["headers"]
            if len(path) + sum(len(name) + len(value) for name, value in headers) > MOST_HEAD:
                await answer(TOO_LONG)(scope, receive, send)  # it has come at once
                return

            def tell(message: Any) -> Any:
                if message["type"] == "http.response.start" and cycle.more_body:
                    kept = [h for h in message.get("headers", ()) if h[0].lower() != b"connection"]
                    message = {**message, "headers": [*kept, (b"connection", b"close")]}
                return send(message)

            await self._application(scope, receive, tell)

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(Lingering(transport, seconds, self._has_unread))
            _notice_the_gone(transport, seconds)
            if len(self.connections) > most:
                self._turn_away(TOO_MANY)
            else:
                self._deadline = self.loop.call_later(seconds, self._late)

        def connection_lost(self, error: Exception | None) -> None:
            self._stop_clock()
            self._moves_on()
            self.transport.end()
            _let_go(self._answering)
            super().connection_lost(error)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._waits()

        def resume_writing(self) -> None:
            self._moves_on()
            super().resume_writing()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.transport.get_write_buffer_size():
                self._waits()  # also behind `close`, which goes on until all is sent

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                self.transport.linger()
                return
            if self._deaf:
                return
            before = self.cycle
            held = 0 if before is None else len(before.body)
            super().data_received(data)
            if self.cycle is not before:
                self._stop_clock()
            elif before is None or not before.more_body or len(before.body) == held:
                self._head += len(data)  # or what is behind a body, as endless as a head may be
                if self._head > MOST_HEAD:
                    self._turn_away(TOO_LONG)
                elif self._deadline is None and (before is None or before.response_complete):
                    self._deadline = self.loop.call_later(seconds, self._late)

        def send_400_response(self, msg: str) -> None:
            # httptools cannot take a path apart that is too long, and does not say so
            long = len(getattr(self, "url", b"")) > MOST_HEAD
            self._turn_away(TOO_LONG if long else ApiError(msg, code="invalid_http"))

        def shutdown(self) -> None:
            """The server stops. What has not come whole by now is not waited for."""
            cycle = self.cycle
            if self.transport.is_closing():
                self.transport.end()
            elif cycle is not None and cycle.more_body and not cycle.response_started:
                self._turn_away(STOPPING)
            super().shutdown()

        def _waits(self) -> None:
            if self._stuck is None:
                self._stuck = self.loop.call_later(seconds, self._give_up)

        def _moves_on(self) -> None:
            if self._stuck is not None:
                self._stuck.cancel()
                self._stuck = None

        def _give_up(self) -> None:
            self._stuck = None
            if self.transport.get_write_buffer_size():
                self.transport.abort()

        def _late(self) -> None:
            self._deadline = None
            if self._head:
                self._turn_away(too_late)
            else:
                self.transport.close()

        def _stop_clock(self) -> None:
            self._head = 0
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _turn_away(self, error: ApiError) -> None:
            self._stop_clock()
            if self.transport.is_closing():
                return
            self._deaf = True
            for cycle in (self.cycle, self._answering):
                if cycle is not None and not cycle.response_complete and not cycle.more_body:
                    cycle.keep_alive = False  # what was asked before is answered, and no more
                    return
            if self.cycle is not None and not self.cycle.response_complete:
                _let_go(self.cycle)
                if self.cycle.response_started:
                    self.transport.abort()
                    return
            body = error.body()
            lines = [
                f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}",
                "content-type: application/json",
                f"content-length: {len(body)}",
                "connection: close",
                *(f"{name.lower()}: {value}" for name, value in error.headers.items()),
            ]
            self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
            self.transport.close()

        def _has_unread(self) -> bool:
            some = self._deaf or (self.cycle is not None and self.cycle.more_body)
            return some and len(self.connections) <= most + LINGERING

    return BoundedProtocol


def _let_go(cycle: Any) -> None:
    """Tell who answers a request that nobody hears it."""
    if cycle is not None and not cycle.response_complete:
        cycle.disconnected = True
        cycle.message_event.set()


TOO_MANY = ApiError(
    "Too many connections are open. Try again later.",
    status=503,
    code="too_many_connections",
    headers={"Retry-After": "1"},
)
STOPPING = ApiError("The server is stopping.", status=503, code="stopping")
TOO_LONG = ApiError(
    f"Path and headers are longer than {MOST_HEAD} bytes.", status=431, code="headers_too_large"
)


def _notice_the_gone(transport: asyncio.Transport, seconds: float) -> None:
    """Let the kernel end a connection whose peer has vanished."""
    found = transport.get_extra_info("socket")
    if found is None or found.family not in (socket.AF_INET, socket.AF_INET6):
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", max(1, int(seconds / 2))),
        ("TCP_KEEPINTVL", max(1, int(seconds / 6))),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", max(1, int(seconds * 1000))),
    ):
        if hasattr(socket, name):  # Linux has them all
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
