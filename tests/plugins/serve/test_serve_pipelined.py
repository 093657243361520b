"""Requests of one connection that are sent without waiting for answers (RFC 9112, 9.3.2)."""

from __future__ import annotations

import socket
import threading
from contextlib import closing

import pytest

from plugins.serve.parsing import ExactProtocol
from tests.plugins.serve.running import Running

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_requests_are_not_read_much_faster_than_they_are_answered(
    fake: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = []
    complete = ExactProtocol.on_message_complete

    def noted(self: ExactProtocol) -> None:
        complete(self)
        waiting.append(len(self.pipeline))

    monkeypatch.setattr(ExactProtocol, "on_message_complete", noted)
    count, found = 25_000, b""
    with closing(socket.create_connection(("127.0.0.1", fake.port), timeout=20)) as connection:
        sender = threading.Thread(target=connection.sendall, args=(HEALTH * count,))
        sender.start()
        while found.count(b"HTTP/1.1 200") < count:
            found += connection.recv(1 << 22)
        sender.join()
    assert max(waiting) < 10_000  # what the event loop reads at once may hold some thousands
