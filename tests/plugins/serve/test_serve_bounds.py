"""Connections, heads and bodies are bounded; keys and origins are checked; who goes is noticed."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from core.errors import UserError
from plugins.serve import connections
from tests.plugins.serve.fake_engine import FakeEngine
from tests.plugins.serve.running import Running, serving

HELLO = {"messages": [{"role": "user", "content": "Hello"}]}


def connect(running: Running) -> closing[socket.socket]:
    return closing(socket.create_connection(("127.0.0.1", running.port), timeout=20))


def raw_post(body: bytes, *headers: str, length: int | None = None) -> bytes:
    head = [
        "POST /v1/completions HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        f"Content-Length: {len(body) if length is None else length}",
        *headers,
    ]
    return "\r\n".join([*head, "", ""]).encode() + body


def answer(connection: socket.socket) -> tuple[int, str]:
    """-> the status and the rest of an answer, read until the server closes."""
    data = b""
    while chunk := connection.recv(65536):
        data += chunk
    return int(data.split(b" ", 2)[1]), data.decode()


def eventually(happens: Callable[[], Any], seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < until, "it does not happen"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def small(folder: Path) -> Iterator[Running]:
    """A server that takes small bodies and few connections."""
    with serving(FakeEngine(), folder, max_body=2000, max_connections=6) as running:
        yield running


def test_a_large_body_is_refused_before_it_is_read(small: Running) -> None:
    with connect(small) as connection:
        connection.sendall(raw_post(b"", length=10**12))
        status, text = answer(connection)
    assert status == 413
    assert "2000 bytes" in text


def test_a_large_body_without_a_length_is_refused(small: Running) -> None:
    def chunks() -> Iterator[bytes]:
        yield from [b" " * 500] * 10

    found = small.http.post(
        "/v1/completions", content=chunks(), headers={"Content-Type": "application/json"}
    )
    assert found.status_code == 413
    assert found.json()["error"]["code"] == "request_too_large"


def test_long_heads_are_refused(small: Running) -> None:
    with connect(small) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        try:
            for _ in range(400):
                connection.sendall(b"X-Long: " + b"a" * 1000 + b"\r\n")
            assert answer(connection)[0] == 431
        except TimeoutError:
            pytest.fail("the server reads on and on")
        except OSError:
            pass  # it was closed while more was on its way


def test_what_is_not_http_is_refused(small: Running) -> None:
    with connect(small) as connection:
        connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        status, text = answer(connection)
    assert status == 400
    assert json.loads(text.partition("\r\n\r\n")[2])["error"]["code"] == "invalid_http"


@pytest.fixture(scope="module")
def impatient(folder: Path) -> Iterator[Running]:
    with serving(FakeEngine(), folder, client_timeout=0.2) as running:
        yield running


def test_a_head_has_to_come_in_time(impatient: Running) -> None:
    with connect(impatient) as begun, connect(impatient) as silent:
        begun.sendall(b"GET /health HT")
        assert answer(begun)[0] == 408
        assert silent.recv(100) == b""


def test_a_body_has_to_come_in_time(impatient: Running) -> None:
    with connect(impatient) as connection:
        connection.sendall(raw_post(b'{"prompt"', length=100))
        status, text = answer(connection)
    assert status == 408
    assert "within 0.2 seconds" in text


def test_too_many_connections_are_turned_away(small: Running) -> None:
    small.http.close()
    small.http = type(small.http)(base_url=small.url)
    opened = [socket.create_connection(("127.0.0.1", small.port), timeout=20) for _ in range(6)]
    try:
        time.sleep(0.1)
        with connect(small) as late:
            status, text = answer(late)
        assert status == 503
        assert "retry-after: 1" in text
    finally:
        for connection in opened:
            connection.close()
    eventually(lambda: small.http.get("/health").status_code == 200)


def test_a_connection_serves_many_requests(small: Running) -> None:
    with connect(small) as connection:
        connection.sendall(raw_post(b'{"prompt": "ab"}') * 3)  # pipelined
        connection.sendall(raw_post(b'{"prompt": "ab"}', "Connection: close"))
        _, text = answer(connection)
    assert text.count("HTTP/1.1 200") == 4


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_ends_its_request(fake: Running, stream: bool) -> None:
    fake.engine.answer = lambda ids, params, index: [70] * 200
    fake.engine.step = 0.02
    body = json.dumps({"prompt": ["a", "b"], "stream": stream, "n": 2}).encode()
    with connect(fake) as connection:
        connection.sendall(raw_post(body))
        eventually(lambda: len(fake.engine.asked) == 2)
        if stream:
            assert b"data: " in connection.recv(65536) + connection.recv(65536)
    for asked in fake.engine.asked:
        eventually(lambda asked=asked: not asked.submission.open)
        assert asked.cancelled == [None]
    fake.engine.step = 0.0
    assert fake.post("/v1/completions", {"prompt": "a"}).status_code == 200


def test_a_client_that_goes_while_the_engine_waits(fake: Running) -> None:
    fake.engine.hold = True
    with connect(fake) as connection:
        connection.sendall(raw_post(b'{"prompt": "a", "stream": true}'))
        eventually(lambda: fake.engine.asked)
    eventually(lambda: fake.engine.asked[0].cancelled)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_takes_nothing_is_given_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    def small_buffer(transport: Any, seconds: float) -> None:  # and the kernel does not notice
        taken = transport.get_extra_info("socket")
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    monkeypatch.setattr(connections, "_notice_the_gone", small_buffer)
    engine = FakeEngine(lambda ids, params, index: [70] * 250, vocab_size=100_000)
    with (
        serving(engine, folder, client_timeout=0.5) as running,
        closing(socket.socket()) as connection,
    ):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", running.port))
        # log probabilities, more than the buffers on the way hold
        fields = {"prompt": "a", "stream": stream, "n": 8, "logprobs": 20}
        connection.sendall(raw_post(json.dumps(fields).encode()))
        connection.recv(1, socket.MSG_PEEK)
        eventually(lambda: not engine.asked[0].submission.open)
        time.sleep(0.6)
        data = b""
        try:
            while chunk := connection.recv(2**20):
                data += chunk
        except ConnectionResetError:
            pass
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    if stream:
        assert b"data: [DONE]" not in body
    else:
        length = int(head.lower().partition(b"content-length: ")[2].split()[0])
        assert len(body) < length


def test_a_failure_in_a_stream_is_an_event_and_its_end(fake: Running) -> None:
    fake.engine.answer = lambda ids, params, index: [70] * 200
    fake.engine.step = 0.01
    parts: list[Any] = []
    with fake.http.stream("POST", "/v1/chat/completions", json={**HELLO, "stream": True}) as found:
        for line in found.iter_lines():
            if line.startswith("data: {"):
                parts.append(json.loads(line.removeprefix("data: ")))
            if len(parts) == 3:
                fake.engine.die()
    assert found.status_code == 200
    assert line == "" or line == "data: [DONE]"
    assert parts[-1]["error"]["code"] == "engine_stopped"
    assert "choices" in parts[-2]


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PLAIT_TEST_KEY", "sesame")
    return "sesame"


def test_the_key_is_asked_for(folder: Path, key: str) -> None:
    with serving(FakeEngine(), folder, api_key_env="PLAIT_TEST_KEY") as running:
        for headers in (
            {},
            {"Authorization": "Bearer other"},
            {"Authorization": f"Basic {key}"},
            {"Authorization": "Bearer"},
            {"Authorization": f"Bearer {key}x"},
        ):
            for path in ("/v1/models", "/v1/nothing", "/tokenize"):
                found = running.http.get(path, headers=headers)
                assert found.status_code == 401
                assert found.json()["error"]["code"] == "invalid_api_key"
        assert running.http.get("/health").status_code == 200
        right = {"Authorization": f"Bearer {key}"}
        assert running.http.get("/v1/models", headers=right).status_code == 200
        assert running.openai(api_key=key).models.list().data[0].id == "tiny"


def test_a_key_that_is_not_set_is_told(folder: Path) -> None:
    with (
        pytest.raises(UserError, match="PLAIT_TEST_KEY is not set"),
        serving(FakeEngine(), folder, api_key_env="PLAIT_TEST_KEY"),
    ):
        pass


def test_only_named_origins_may_call(folder: Path, key: str) -> None:
    options: Any = {"cors": ["http://page.example"], "api_key_env": "PLAIT_TEST_KEY"}
    with serving(FakeEngine(), folder, **options) as running:
        asks = {
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization, content-type",
        }
        mine = {"Origin": "http://page.example"}
        found = running.http.options("/v1/completions", headers=asks | mine)
        assert found.status_code == 200
        assert found.headers["access-control-allow-origin"] == "http://page.example"
        other = running.http.options(
            "/v1/completions", headers=asks | {"Origin": "http://other.example"}
        )
        assert "access-control-allow-origin" not in other.headers
        right = {"Authorization": f"Bearer {key}", **mine}
        events = running.post("/v1/completions", {"prompt": "a", "stream": True}, headers=right)
        assert events.headers["access-control-allow-origin"] == "http://page.example"
        wrong = running.post("/v1/completions", {"prompt": "a"}, headers=mine)
        assert wrong.status_code == 401
        assert wrong.headers["access-control-allow-origin"] == "http://page.example"


def test_without_origins_no_page_may_read(fake: Running) -> None:
    found = fake.http.get("/v1/models", headers={"Origin": "http://page.example"})
    assert "access-control-allow-origin" not in found.headers
