"""HTTP/1.1 by hand, for clients that a library would not let misbehave: half a request, a reset."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any, NamedTuple

PATIENCE = 60.0  # seconds without a byte after which a server counts as hung


class Reply(NamedTuple):
    """An answer that has come whole."""

    status: int
    headers: dict[str, str]
    body: bytes
    stays: bool  # the connection is open for the next request


class Hung(Exception):
    """The server neither answered nor closed."""


def post(path: str, body: bytes, *headers: str) -> bytes:
    """A request with a body of JSON."""
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


class Connection:
    """One connection; `reply` reads an answer to its end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._begun = b""  # of the next answer

    @classmethod
    async def open(cls, port: int, *, receive: int | None = None) -> Connection:
        """`receive`: bytes that wait here unread, about; the server cannot send more then."""
        found = socket.socket()
        found.setblocking(False)
        if receive is not None:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        try:
            await asyncio.wait_for(
                asyncio.get_running_loop().sock_connect(found, ("127.0.0.1", port)), PATIENCE
            )
        except BaseException:
            found.close()
            raise
        # the reader stops to read at twice its limit, else 128 KB
        opened = asyncio.open_connection(sock=found, limit=receive or 2**16)
        return cls(*await opened)

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await asyncio.wait_for(self._writer.drain(), PATIENCE)

    async def some(self) -> bytes:
        """What is there, waiting for at least a byte. b"": the server has closed."""
        try:
            return await asyncio.wait_for(self._reader.read(65536), PATIENCE)
        except TimeoutError:
            raise Hung(f"nothing came for {PATIENCE:.0f} s") from None

    async def begin(self) -> None:
        """Wait for the first bytes of an answer, which `reply` then goes on with."""
        self._begun += await self._more()

    async def reply(self) -> Reply:
        """ConnectionError when it ends early."""
        data, self._begun = self._begun, b""
        while b"\r\n\r\n" not in data:
            data += await self._more()
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        if headers.get("transfer-encoding") == "chunked":
            parts = [body]
            while not b"".join(parts[-2:]).endswith(b"0\r\n\r\n"):
                parts.append(await self._more())
            body = _joined(b"".join(parts))
        else:
            while len(body) < int(headers["content-length"]):
                body += await self._more()
        return Reply(int(first.split()[1]), headers, body, headers.get("connection") != "close")

    async def _more(self) -> bytes:
        data = await self.some()
        if not data:
            raise ConnectionError("the server closed the connection early")
        return data

    def close(self) -> None:
        self._writer.close()

    def reset(self) -> None:
        """Close so that the server's next byte is answered by a reset."""
        found = self._writer.get_extra_info("socket")
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.close()


def events(body: bytes) -> list[Any]:
    """The events of a stream that is complete. AssertionError when it is not."""
    parts = body.decode().split("\n\n")
    assert parts.pop() == "", "half an event at the end"
    assert parts.pop() == "data: [DONE]", "the stream has no end"
    return [json.loads(part.removeprefix("data: ")) for part in parts]


def _joined(body: bytes) -> bytes:
    """A chunked body without the lengths."""
    found, at = [], 0
    while size := int(body[at : (start := body.index(b"\r\n", at))], 16):
        found.append(body[start + 2 : start + 2 + size])
        at = start + 2 + size + 2
    return b"".join(found)
