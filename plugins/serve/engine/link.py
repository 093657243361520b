"""The engine's end of the socket to the server: it neither waits for a slow reader nor polls."""

from __future__ import annotations

import select
import socket
from contextlib import suppress

import msgspec

from plugins.serve.engine.frames import Frames, frame
from plugins.serve.engine.messages import Report, Request

MOST_HELD = 64 * 2**20  # bytes that a server may leave unread before the engine waits for it
AT_ONCE = 2**18  # bytes that are read in one go


class Gone(Exception):
    """The server has closed its end."""


class Link:
    """Collects reports until `flush`, and reads requests. One thread only."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._frames = Frames()
        self._held = bytearray()  # what is still to be sent
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(Request).decode
        self._incoming, self._outgoing, self._both = (select.poll() for _ in range(3))
        self._incoming.register(connection, select.POLLIN)
        self._outgoing.register(connection, select.POLLOUT)
        self._both.register(connection, select.POLLIN | select.POLLOUT)

    def put(self, report: Report) -> None:
        """Goes with the next `flush`."""
        self._held += frame(self._encode(report))

    def flush(self) -> None:
        """Send what the socket takes; the rest stays for the next call."""
        while self._held:
            try:
                sent = self._socket.send(self._held)
            except BlockingIOError:
                if len(self._held) <= MOST_HELD:
                    return
                self._outgoing.poll()
            except OSError as error:
                raise Gone from error
            else:
                del self._held[:sent]

    def end(self) -> None:
        """Nothing more is put: whoever reads at the other end comes to an end."""
        with suppress(OSError):  # it may be closed already
            self._socket.shutdown(socket.SHUT_WR)

    def receive(self, *, wait: bool) -> list[Request]:
        """Every request that is here. `wait`: sleep until there is one. Gone at the end."""
        requests: list[Request] = []
        while wait and self._held:
            self.flush()
            if self._held and self._both.poll()[0][1] & ~select.POLLOUT:
                break
        if not self._incoming.poll(None if wait else 0):
            return requests
        try:
            while data := self._socket.recv(AT_ONCE):
                requests += map(self._decode, self._frames.feed(data))
        except BlockingIOError:
            return requests
        except OSError as error:
            raise Gone from error
        raise Gone
