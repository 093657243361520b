"""Requests in the log: none unless asked for, and then nothing of what was said."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from plugins.serve.access import AccessLog
from tests.plugins.serve.fake_engine import FakeEngine
from tests.plugins.serve.running import Running, serving

SECRET = "the cake is a lie"
ASKED = {"prompt": SECRET, "max_tokens": 5}


@pytest.fixture
def logging_server(folder: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Running]:
    caplog.set_level(logging.DEBUG, "plait")
    with serving(FakeEngine(), folder, access_log=True) as running:
        assert lines(caplog, 1)  # of the question whether it is there
        caplog.clear()
        yield running


def lines(caplog: pytest.LogCaptureFixture, count: int) -> list[str]:
    """The log, once it has so many lines: a client has its answer before the server is done."""
    until = time.monotonic() + 10
    while len(caplog.records) < count and time.monotonic() < until:
        time.sleep(0.01)
    return [record.getMessage() for record in caplog.records]


def test_none_by_itself(fake: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "plait")
    assert fake.post("/v1/completions", ASKED).status_code == 200
    assert fake.http.get("/nowhere").status_code == 404
    time.sleep(0.1)
    assert lines(caplog, 0) == []


def test_a_line_for_each(logging_server: Running, caplog: pytest.LogCaptureFixture) -> None:
    logging_server.post("/v1/completions?key=sesame", ASKED)
    logging_server.events("/v1/completions", ASKED)
    logging_server.post("/v1/completions", {"prompt": SECRET, "max_tokens": -1})
    logging_server.http.get("/nowhere")
    found = lines(caplog, 4)
    wanted = ["POST /v1/completions: 200", "POST /v1/completions: 200"]
    wanted += ["POST /v1/completions: 400", "GET /nowhere: 404"]
    assert [line.split(" in ")[0] for line in found] == [f"127.0.0.1 {line}" for line in wanted]
    assert all(re.search(r" in \d+\.\d{3} s$", line) for line in found)
    assert not any(word in line for line in found for word in ("cake", "sesame"))


def test_a_client_that_leaves(logging_server: Running, caplog: pytest.LogCaptureFixture) -> None:
    logging_server.engine.answer = lambda ids, params, index: [70] * 10_000
    logging_server.engine.step = 0.01
    with logging_server.http.stream("POST", "/v1/completions", json={**ASKED, "stream": True}) as s:
        next(s.iter_lines())
    (line,) = lines(caplog, 1)
    assert "POST /v1/completions: 200, cut off in " in line


def test_a_path_is_no_line_of_its_own(
    logging_server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    for path in (b"/a%0d%0aERROR:%20all%20is%20lost", b"/\xc3\xa9\xff"):
        with socket.create_connection(("127.0.0.1", logging_server.port)) as client:
            client.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
            client.recv(100)
    for line in lines(caplog, 1):
        assert line.isascii()
        assert line.isprintable()


def test_a_fault_is_logged_as_what_the_client_gets(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "plait")

    async def faulty(*given: object) -> None:
        raise ZeroDivisionError

    scope = {"type": "http", "method": "GET", "path": "/x", "raw_path": b"/x", "client": None}
    with pytest.raises(ZeroDivisionError):
        asyncio.run(AccessLog(faulty)(scope, None, None))  # type: ignore[arg-type]
    assert caplog.records[0].getMessage().startswith("? GET /x: 500 in ")
