"""How connections end: with the answers that were asked for, and not with a reset."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from plugins.serve.connections import MOST_HEAD
from tests.plugins.serve.fake_engine import FakeEngine
from tests.plugins.serve.running import Running, serving
from tests.plugins.serve.test_serve_bounds import eventually

LARGE = b'{"prompt": "' + b"x" * 3_000_000 + b'"}'
ASKED = b'{"prompt": "ab"}'
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
EARLY = {
    "no such path": (404, "/v1/nothing", "application/json", ""),
    "no such method": (405, "/health", "application/json", ""),
    "too large": (413, "/v1/completions", "application/json", ""),
    "no JSON": (415, "/v1/completions", "text/plain", ""),
    "not for pages": (403, "/v1/completions", "application/json", "evil.example"),
    "a head too long": (431, "/" + "a" * 300_000, "application/json", ""),
    "no HTTP": (400, "/ HTTP/1.1 ?", "application/json", ""),
}


@pytest.fixture(scope="module", params=["httptools", "h11"])
def small(folder: Path, request: pytest.FixtureRequest) -> Iterator[Running]:
    """A server that takes small bodies, with either of the parsers that it may find."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "h11":
            patch.setitem(sys.modules, "plugins.serve.parsing", None)
        with serving(FakeEngine(), folder, max_body=2000) as running:
            yield running


def post(path: str, body: bytes, kind: str = "application/json", host: str = "", *more: str) -> Any:
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {host or 'localhost'}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        *more,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def talk(running: Running, *parts: bytes, wait: float = 0.05) -> str:
    """All that the server says, until it closes; what is sent in several parts is sent slowly."""
    with closing(socket.create_connection(("127.0.0.1", running.port), timeout=20)) as connection:
        for part in parts:
            connection.sendall(part)
            time.sleep(wait * (part is not parts[-1]))
        return heard(connection)


def heard(connection: socket.socket) -> str:
    data = b""
    while chunk := connection.recv(65536):
        data += chunk
    return data.decode("latin-1")


@pytest.mark.parametrize("name", EARLY)
@pytest.mark.parametrize("slowly", [False, True], ids=["at once", "slowly"])
def test_who_is_still_sending_gets_the_answer(small: Running, name: str, slowly: bool) -> None:
    status, path, kind, host = EARLY[name]
    request = post(path, LARGE, kind, host)
    cuts = (0, 60, len(request) - len(LARGE), -2_000_000, len(request)) if slowly else (0, None)
    parts = [request[i:j] for i, j in pairwise(cuts)]
    text = talk(small, *parts)
    if status == 431 and not text.startswith("HTTP/1.1 431 "):
        status = 400  # h11's word for it
    assert text.startswith(f"HTTP/1.1 {status} ")
    head, _, body = text.partition("\r\n\r\n")
    assert "\r\nconnection: close" in head.lower()
    assert json.loads(body)["error"]["message"]


@pytest.mark.parametrize("name", ["no such path", "no such method", "no JSON", "not for pages"])
def test_the_next_request_is_answered_behind_one_that_came_whole(small: Running, name: str) -> None:
    status, path, kind, host = EARLY[name]
    last = HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    text = talk(small, post(path, ASKED, kind, host), last)
    assert text.startswith(f"HTTP/1.1 {status} ")
    assert text.count("HTTP/1.1 200 ") == 1
    assert "connection: close" not in text.partition("\r\n\r\n")[0].lower()


def test_a_library_that_sends_first_hears_what_was_wrong(small: Running) -> None:
    with httpx.Client(base_url=small.url) as client:
        for status, path, kind, host in EARLY.values():
            if status not in (400, 431):
                headers = {"Content-Type": kind} | ({"Host": host} if host else {})
                assert client.post(path, content=LARGE, headers=headers).status_code == status


@pytest.mark.parametrize(
    "asks", ["websocket", "h2c", "HTTP/2.0", "x, y"], ids=["websocket", "h2c", "HTTP2", "several"]
)
@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
def test_a_request_to_upgrade_is_an_ordinary_one(small: Running, asks: str, apart: bool) -> None:
    """And its body no request of its own, whatever is in it."""
    more = (f"Upgrade: {asks}", "Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AA")
    requests = [post("/v1/completions", ASKED, "application/json", "", *more)] * 2
    hidden = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    requests.append(post("/v1/completions", hidden, "application/json", "", *more))
    requests.append(HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    data = b"".join(requests)
    parts = data.split(b"\r\n\r\n") if apart else [data]
    parts = [part + b"\r\n\r\n" for part in parts[:-1]] + parts[-1:]
    text = talk(small, *parts)
    found = [int(line.split()[1]) for line in text.split("HTTP/1.1")[1:] for line in ["_" + line]]
    assert found == [200, 200, 400, 200]
    assert "invalid_json" in text
    assert '"object":"list"' not in text


def test_many_requests_to_upgrade_are_read_in_a_row(small: Running) -> None:
    one = HEALTH.replace(b"\r\n\r\n", b"\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n")
    last = HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    assert talk(small, one * 1500 + last).count("HTTP/1.1 200 ") == 1501


@pytest.mark.parametrize("hosts", ["", "Host: localhost\r\nHost: localhost\r\n"])
def test_a_request_names_one_host(small: Running, hosts: str) -> None:
    text = talk(small, f"GET /health HTTP/1.1\r\n{hosts}\r\n".encode() + HEALTH)
    assert text.startswith("HTTP/1.1 400 ")
    assert text.count("HTTP/1.1") == 1


@pytest.mark.parametrize(
    "garbage", [b"no request\r\n\r\n" * 10, b"POST / HTTP/1.1\r\nX\0: 1\r\n\r\n"]
)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_what_cannot_be_read_ends_no_answer(small: Running, garbage: bytes, stream: bool) -> None:
    """It ends the connection behind it, with an answer of its own or without."""
    engine = small.engine
    engine.answer, engine.step = (lambda ids, params, index: [70] * 20), 0.01
    try:
        asked = post("/v1/completions", json.dumps({"prompt": "ab", "stream": stream}).encode())
        for parts in ([asked + garbage], [asked, garbage]):
            text = talk(small, *parts)
            first, _, second = text.partition("HTTP/1.1 400 ")
            assert first.startswith("HTTP/1.1 200 ")
            assert first.endswith("data: [DONE]\n\n\r\n0\r\n\r\n" if stream else "}")
            assert '"finish_reason":"length"' in first
            assert second == "" or second.endswith("}}")
    finally:
        engine.answer, engine.step = FakeEngine().answer, 0.0


def test_a_head_without_end_is_not_kept_while_an_answer_is_awaited(small: Running) -> None:
    small.engine.hold = True
    before = len(small.engine.asked)
    with closing(socket.create_connection(("127.0.0.1", small.port), timeout=20)) as connection:
        connection.sendall(post("/v1/completions", ASKED))
        eventually(lambda: len(small.engine.asked) > before)
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
        for _ in range(40):
            connection.sendall(b"y" * (MOST_HEAD // 4))
        connection.sendall(b"\r\n\r\n")
        time.sleep(0.2)
        small.engine.hold = False
        text = heard(connection)
    assert text.startswith("HTTP/1.1 200 ")
    assert "HTTP/1.1 2" not in text[1:]


@pytest.mark.parametrize("part", ["path", "header", "headers"])
def test_a_head_that_comes_at_once_is_not_longer_than_one_in_pieces(
    small: Running, part: str
) -> None:
    long = b"y" * (MOST_HEAD + 1)
    head = {
        "path": b"GET /" + long + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "header": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + long + b"\r\n\r\n",
        "headers": b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
        + (b"X: " + b"y" * 1000 + b"\r\n") * (MOST_HEAD // 1000 + 1)
        + b"\r\n",
    }[part]
    text = talk(small, head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert text.startswith("HTTP/1.1 431 ")
    assert "headers_too_large" in text


def test_a_client_that_goes_ends_the_request_before_the_one_it_sent_last(fake: Running) -> None:
    fake.engine.answer = lambda ids, params, index: [70] * 200
    fake.engine.step = 0.05
    with closing(socket.create_connection(("127.0.0.1", fake.port), timeout=20)) as connection:
        connection.sendall(post("/v1/completions", ASKED) + HEALTH)
        eventually(lambda: fake.engine.asked)
        time.sleep(0.1)
    eventually(lambda: fake.engine.asked[0].cancelled, 3)


def test_a_server_that_stops_waits_for_nobody_who_goes_on_sending(folder: Path) -> None:
    with serving(FakeEngine(), folder, max_body=2000) as running:
        connection = socket.create_connection(("127.0.0.1", running.port), timeout=20)
        connection.sendall(post("/v1/nothing", LARGE)[:2000])
        assert b" 404 " in connection.recv(1000)
        began = time.monotonic()
    assert time.monotonic() - began < 0.9
    connection.close()
