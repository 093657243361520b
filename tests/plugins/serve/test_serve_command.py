"""The server as a command: what keeps it from starting, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from core import registry, settings
from core.errors import UserError
from core.run import main
from plugins.serve.app import Serve
from plugins.serve.listening import beyond, open_address, take_address, url
from tests.plugins.serve.command import Command
from tests.plugins.serve.engine.started import gone

SLOW = Path(__file__).parent / "slow_plugin.py"
KEY = "a-key-that-nobody-guesses"
PROMPT = "a secret prompt"
CONFIG = "configs/qwen3-serve.yaml"


def words(folder: Path, *more: str) -> list[str]:
    return [CONFIG, f"model.path={folder}", "cache.pages=512", *more]


def body(tokens: int) -> dict[str, object]:
    """200 tokens take 4 seconds with the slow plugin."""
    return {
        "model": "served",
        "prompt": PROMPT,
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def stream(url: str, tokens: int, **headers: str) -> Iterator[str]:
    """The data of the events of a stream, the last one included."""
    with (
        httpx.Client(timeout=60) as http,
        http.stream("POST", f"{url}/v1/completions", json=body(tokens), headers=headers) as answer,
    ):
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line:
                yield line.removeprefix("data: ")


# before anything is loaded


def refuse(folder: Path, *more: str) -> str:
    """What keeps it from starting; the model does not exist, so nothing has looked at it."""
    config = settings.load(CONFIG, [f"model.path={folder}/nothing", *more])
    with pytest.raises(UserError) as refusal:
        Serve(config.run.options).run(config)
    return str(refusal.value)


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        assert f"port {port} of 127.0.0.1 is taken" in refuse(tmp_path, f"run.port={port}")


def test_a_port_that_another_program_is_about_to_open(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]

        assert "is taken" in refuse(tmp_path, f"run.port={port}")


def test_a_port_that_another_server_opened_meanwhile() -> None:
    with take_address("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with take_address("127.0.0.1", port) as second:
            open_address(first)

            with pytest.raises(UserError, match=f"port {port} of 127.0.0.1 is taken"):
                open_address(second)


@pytest.mark.parametrize("host", ["not a host", "203.0.113.7"])
def test_an_address_that_is_not_ours(tmp_path: Path, host: str) -> None:
    assert f"run.host is '{host}'" in refuse(tmp_path, f"run.host={host}", "run.port=0")


@pytest.mark.parametrize(("host", "more"), [("0.0.0.0", True), ("127.0.0.1", False)])
def test_who_can_reach_it_is_said(host: str, more: bool) -> None:
    with take_address(host, 0) as listener:
        assert url(listener).startswith("http://127.0.0.1:")
        assert bool(beyond(listener)) == more


def test_a_key_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLAIT_TEST_KEY", raising=False)

    asked = ("run.api_key_env=PLAIT_TEST_KEY", "run.port=0")
    assert "PLAIT_TEST_KEY is not set" in refuse(tmp_path, *asked)
    monkeypatch.setenv("PLAIT_TEST_KEY", " ")
    assert "PLAIT_TEST_KEY is empty" in refuse(tmp_path, *asked)


def test_what_keeps_it_from_starting_is_a_sentence_and_a_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PLAIT_TEST_KEY", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as other:
        for wrong, says in (
            (f"run.port={other.getsockname()[1]}", "is taken by another program"),
            ("run.api_key_env=PLAIT_TEST_KEY", "PLAIT_TEST_KEY is not set"),
        ):
            assert main([CONFIG, f"model.path={tmp_path}/nothing", "run.port=0", wrong]) == 2

            told = capsys.readouterr().err
            assert says in told
            assert "Traceback" not in told


def test_settings_out_of_range_are_told_together() -> None:
    wrong = ["port=70000", "queue=0", "max_body=-1", "drain=-2", "client_timeout=0"]
    changes = [f"run.{change}" for change in wrong]

    with pytest.raises(UserError) as refusal:
        settings.load(CONFIG, changes)

    for name in ("port", "queue", "max_body", "drain", "client_timeout"):
        assert f"{name} must" in str(refusal.value)


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "installed", lambda name: name != "starlette")

    with pytest.raises(UserError, match="needs starlette, which is not installed"):
        registry.apps.get("serve")


# its end


def test_answers_end_when_it_is_told_to_stop(folder: Path) -> None:
    """Everything that needs a key, a plugin and many streams, in one life of a server."""
    more = ["run.name=served", "run.api_key_env=PLAIT_TEST_KEY", "run.log_level=debug"]
    bearer = {"Authorization": f"Bearer {KEY}"}
    with Command(*words(folder, *more), "-p", str(SLOW), PLAIT_TEST_KEY=KEY) as server:
        url = server.url()
        engine = server.engine()
        assert "PLAIT_TEST_KEY" not in Path(f"/proc/{engine}/environ").read_text()
        assert httpx.get(f"{url}/health").status_code == 200
        assert httpx.get(f"{url}/ids").status_code == 401
        assert len(httpx.get(f"{url}/ids", headers=bearer, timeout=30).json()) == 3
        with ThreadPoolExecutor(12) as pool:
            many = [pool.submit(lambda: list(stream(url, 100, **bearer))) for _ in range(12)]
            time.sleep(0.7)
            server.tell(signal.SIGTERM)
            time.sleep(0.3)
            with pytest.raises(httpx.ConnectError):
                httpx.get(f"{url}/health")
            events = [each.result() for each in many]
        assert server.status(within=10) == 0
        assert gone(engine, 1)
        for found in events:
            assert found[-1] == "[DONE]"
            assert json.loads(found[-2])["usage"]["completion_tokens"] == 100
        assert PROMPT not in server.said
        assert KEY not in server.said
        assert "Traceback" not in server.said


def test_those_that_do_not_end_in_time_are_told_so(folder: Path) -> None:
    with Command(*words(folder, "run.name=served", "run.drain=0.5"), "-p", str(SLOW)) as server:
        url = server.url()
        engine = server.engine()
        events = stream(url, 200)
        next(events)
        began = time.monotonic()
        server.tell(signal.SIGTERM)
        *_, error, end = events
        assert server.status(within=10) == 0
        assert 0.5 < time.monotonic() - began < 5
        assert json.loads(error)["error"]["code"] == "server_stopping"
        assert end == "[DONE]"
        assert gone(engine, 1)


def test_a_second_signal_ends_it_at_once(folder: Path) -> None:
    with Command(*words(folder, "run.name=served"), "-p", str(SLOW)) as server:
        url = server.url()
        engine = server.engine()
        events = stream(url, 800)
        next(events)
        server.tell(signal.SIGINT)
        time.sleep(0.3)
        assert server.process.poll() is None
        began = time.monotonic()
        server.tell(signal.SIGINT)
        assert server.status(within=10) == 130
        assert time.monotonic() - began < 5  # and not after the stream, or the drain
        assert gone(engine, 5)
        with pytest.raises(httpx.HTTPError):
            list(events)
        assert "stopping: 1 request may end within 30 s" in server.said
        assert "stopped at once: requests that were cut off: 1" in server.said
        assert "Traceback" not in server.said


def test_a_signal_ends_a_server_that_is_still_loading(folder: Path) -> None:
    with Command(*words(folder)) as server:
        engine = server.engine()
        server.tell(signal.SIGTERM)
        assert server.status(within=10) == 143
        assert gone(engine, 1)
        assert "Traceback" not in server.said


def test_without_its_engine_it_says_so_until_it_is_ended(folder: Path) -> None:
    with Command(*words(folder, "run.name=served"), "-p", str(SLOW)) as server:
        url = server.url()
        events = stream(url, 200)
        next(events)
        whole = {**body(200), "stream": False, "stream_options": None}
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(httpx.post, f"{url}/v1/completions", json=whole, timeout=60)
            time.sleep(0.3)
            began = time.monotonic()
            os.kill(server.engine(), signal.SIGKILL)
            *_, error, end = events
            assert waiting.result().status_code == 503
        assert time.monotonic() - began < 5
        assert "error" in json.loads(error)
        assert end == "[DONE]"
        assert httpx.get(f"{url}/health").status_code == 503
        assert httpx.post(f"{url}/v1/completions", json=body(5)).status_code == 503
        assert "killed by SIGKILL" in server.said
        server.tell(signal.SIGTERM)
        assert server.status(within=10) == 1
