"""The server's end of the socket to the engine, as a protocol of its event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import msgspec

from plugins.serve.engine.frames import Frames, frame
from plugins.serve.engine.messages import Report, Request


class Wire(asyncio.Protocol):
    """Calls `heard` with every report, and `lost` once when the other end is gone."""

    transport: asyncio.Transport

    def __init__(self, heard: Callable[[Report], None], lost: Callable[[], None]) -> None:
        self._heard, self._lost = heard, lost
        self._frames = Frames()
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(Report).decode

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        for message in self._frames.feed(data):
            self._heard(self._decode(message))

    def connection_lost(self, error: Exception | None) -> None:
        self._lost()

    def send(self, request: Request) -> None:
        """TypeError for parameters that cannot be put into a message."""
        self.transport.write(frame(self._encode(request)))

    def send_bytes(self, message: bytes) -> None:
        """A message that is encoded already."""
        self.transport.write(frame(message))
