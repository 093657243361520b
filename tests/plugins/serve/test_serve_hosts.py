"""A web page that lets its own name stand for this machine gets nothing from the server."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from core import settings
from core.errors import UserError
from plugins.serve.hosts import names_of
from tests.plugins.serve.fake_engine import FakeEngine
from tests.plugins.serve.running import Running, serving

OWN = [
    *(
        "localhost",
        "LOCALHOST:8000",
        "localhost.:8000",
        "page.localhost",
        "127.0.0.1:1",
        "10.0.0.7",
    ),
    *("[::1]:8000", "[::1]", "0.0.0.0:8000"),
]
OTHERS = [
    *("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example:80"),
    *("evillocalhost", "", "[evil.example]", "user@evil.example", "127.0.0.1@evil.example", "a b"),
]


def status(running: Running, host: str, path: str = "/v1/models") -> int:
    return running.http.get(path, headers={"Host": host}).status_code


@pytest.fixture(scope="module")
def local(folder: Path) -> Iterator[Running]:
    with serving(FakeEngine(), folder) as running:
        yield running


@pytest.mark.parametrize("host", OWN)
def test_it_answers_to_addresses_and_to_localhost(local: Running, host: str) -> None:
    assert status(local, host) == 200


@pytest.mark.parametrize("host", OTHERS)
def test_it_answers_to_no_other_name(local: Running, host: str) -> None:
    for path in ("/", "/health", "/metrics", "/v1/models", "/v1/nothing"):
        assert status(local, host, path) == 403
    found = local.post("/v1/completions", {"prompt": "a"}, headers={"Host": host})
    assert found.status_code == 403
    error = found.json()["error"]
    assert error["code"] == "host_not_allowed"
    assert repr(host) in error["message"]
    assert "run.hosts" in error["message"]
    assert not local.engine.asked


def test_whoever_names_nobody_is_no_page(local: Running) -> None:
    with closing(socket.create_connection(("127.0.0.1", local.port), timeout=20)) as connection:
        connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert b" 200 " in connection.recv(1000)


def test_names_that_are_given_are_its_own(folder: Path) -> None:
    hosts = ["llm.example.org", "*.inner.example"]
    with serving(FakeEngine(), folder, hosts=hosts) as running:
        for host in ("llm.example.org", "LLM.Example.org:443", "a.inner.example", "localhost"):
            assert status(running, host) == 200
        for host in ("example.org", "x.llm.example.org", "inner.example", "evil.example"):
            assert status(running, host) == 403


@pytest.mark.parametrize(
    ("host", "hosts", "key", "names"),
    [
        ("127.0.0.1", None, None, ["127.0.0.1"]),
        ("localhost", None, None, ["localhost"]),
        ("::1", None, None, ["::1"]),
        ("127.0.0.1", None, "sesame", None),
        ("0.0.0.0", None, None, None),
        ("::", None, None, None),
        ("0.0.0.0", ["a"], None, ["0.0.0.0", "a"]),
        ("0.0.0.0", ["a"], "sesame", ["0.0.0.0", "a"]),
        ("127.0.0.1", [], "sesame", ["127.0.0.1"]),
        ("127.0.0.1", ["*"], None, None),
    ],
)
def test_when_names_are_checked(
    host: str, hosts: list[str] | None, key: str | None, names: list[str] | None
) -> None:
    assert names_of(host, hosts, key) == names


@pytest.mark.parametrize("name", ["http://a.example", "a.example:80", "a.*", "*a", "[::1]", ""])
def test_what_is_no_name_is_told(name: str) -> None:
    with pytest.raises(UserError, match="hosts holds"):
        settings.load("configs/qwen3-serve.yaml", [f"run.hosts=['{name}']"])
