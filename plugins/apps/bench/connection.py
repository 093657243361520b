"""One connection to a server that streams answers: requests go out, times of tokens come back.

It reads HTTP itself, as far as such servers speak it: a general client takes longer for a token
than the servers that are to be measured.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

from core.errors import UserError

clock = time.perf_counter
NO_TEXT = re.compile(rb'"text":\s*""')
NOT_ENDED = (b'"finish_reason":null', b'"finish_reason": null')
CHOICE = (b'"choices":[{', b'"choices": [{')


@dataclass
class Answer:
    """What came back of one request; times are those of `clock`."""

    sent: float = 0.0
    tokens: list[float] = field(default_factory=list)  # one an event with new tokens
    ended: float = 0.0
    count: int | None = None  # tokens, as the server counts them
    status: int = 0
    error: str | None = None


@dataclass(frozen=True)
class Address:
    """Where a server is."""

    host: str
    port: int
    path: str  # in front of every path of the protocol
    secure: bool = False
    key: str | None = None

    @classmethod
    def parse(cls, url: str, key: str | None = None) -> Address:
        """UserError for what is no URL of a server."""
        parts = urlsplit(url if "//" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = 0
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            raise UserError(f"run.url={url!r} is no address of a server, such as http://HOST:8000.")
        secure = parts.scheme == "https"
        path = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, port or (443 if secure else 80), path, secure, key)

    def request(self, method: str, path: str, body: Any = None) -> bytes:
        """A whole request, ready to be sent."""
        content = b"" if body is None else json.dumps(body).encode()
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [
            f"{method} {self.path}{path} HTTP/1.1",
            f"Host: {host}:{self.port}",
            f"Content-Length: {len(content)}",
            "Content-Type: application/json",
            "Accept: */*",
        ]
        if self.key:
            lines.append(f"Authorization: Bearer {self.key}")
        return "\r\n".join([*lines, "", ""]).encode() + content

    async def connect(self) -> Connection:
        """UserError when nobody answers there."""
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                Connection, self.host, self.port, ssl=True if self.secure else None
            )
        except OSError as error:
            raise UserError(
                f"no server answers at {self.host}:{self.port}: {error.strerror or error}."
            ) from None
        return connection


class Connection(asyncio.Protocol):
    """Carries one request at a time, and is kept for the next."""

    def __init__(self) -> None:
        self.open = True
        self.body = bytearray()  # of an answer that is no stream
        self._answer: Answer | None = None
        self._done: asyncio.Future[Answer] | None = None

    async def ask(self, request: bytes, since: float | None = None) -> Answer:
        """Send, and wait until the answer has ended. `since`: when it should have been sent."""
        assert self._done is None, "the answer before has not ended"
        self._done = asyncio.get_running_loop().create_future()
        self._held, self._event = bytearray(), bytearray()
        self._head = True
        self._chunked, self._left = False, -1  # bytes of the body that are missing; -1: unknown
        self._stream = False
        self.body.clear()
        self._answer = Answer(clock() if since is None else since)
        if self.open:
            self._transport.write(request)
        else:
            self._finish("the server has closed the connection")
        try:
            return await self._done
        finally:
            self._done = None

    def close(self) -> None:
        """Hang up."""
        self.open = False
        self._transport.close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        if self._done is not None and not self._done.done():
            whole = not self._head and not self._chunked and self._left < 0
            self._finish(None if whole else "the server closed the connection before the end")

    def data_received(self, data: bytes) -> None:
        now = clock()
        if self._done is None or self._done.done():
            return
        held = self._held
        held += data
        if self._head:
            end = held.find(b"\r\n\r\n")
            if end < 0:
                return
            self._read_head(held[:end].decode("latin-1"))
            del held[: end + 4]
        if self._chunked:
            self._chunks(now)
        else:
            self._take(bytes(held), now)
            if self._left >= 0:
                self._left -= len(held)
            held.clear()
            if self._left == 0:
                self._finish(None)

    def _read_head(self, head: str) -> None:
        first, *lines = head.split("\r\n")
        fields = {
            name.strip().lower(): value.strip().lower()
            for name, _, value in (line.partition(":") for line in lines)
        }
        assert self._answer is not None
        self._answer.status = int(first.split(" ", 2)[1])
        self._head = False
        self._chunked = fields.get("transfer-encoding") == "chunked"
        self._left = int(fields.get("content-length", -1))
        self._stream = fields.get("content-type", "").startswith("text/event-stream")
        if fields.get("connection") == "close":
            self.open = False

    def _chunks(self, now: float) -> None:
        held, at = self._held, 0
        while (line := held.find(b"\r\n", at)) >= 0:
            size = int(held[at:line].split(b";")[0], 16)
            end = line + 2 + size
            if len(held) < end + 2:
                break
            at = end + 2
            if not size:
                del held[:at]
                self._finish(None)
                return
            self._take(bytes(held[line + 2 : end]), now)
        del held[:at]

    def _take(self, data: bytes, now: float) -> None:
        if not self._stream:
            self.body += data
            return
        if self._event or not data.endswith(b"\n\n"):
            self._event += data.replace(b"\r\n", b"\n")
            *whole, rest = bytes(self._event).split(b"\n\n")
            self._event = bytearray(rest)
        else:
            whole = data.split(b"\n\n")
        for event in whole:
            if event:
                self._look(event, now)

    def _look(self, event: bytes, now: float) -> None:
        answer = self._answer
        assert answer is not None
        if CHOICE[0] in event or CHOICE[1] in event:
            if NOT_ENDED[0] in event or NOT_ENDED[1] in event or not NO_TEXT.search(event):
                answer.tokens.append(now)
            if b'"usage":null' in event or b'"usage"' not in event:
                return
        if event.startswith(b"data: {"):
            found = json.loads(event[6:])
            if usage := found.get("usage"):
                answer.count = usage["completion_tokens"]
            if error := found.get("error"):
                answer.error = str(error.get("message", error))

    def _finish(self, error: str | None) -> None:
        answer = self._answer
        assert answer is not None
        assert self._done is not None
        answer.ended = clock()
        if error is None and answer.status != 200:
            error = f"status {answer.status}: {_message(bytes(self.body))}"
        answer.error = answer.error or error
        self._done.set_result(answer)


def _message(body: bytes) -> str:
    """The sentence in an error object, or what there is instead."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:200].strip() or "no more is said"
