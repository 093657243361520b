"""A server on a real port: in a thread with a stand-in for an engine, or by its command."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import uvicorn
from starlette.applications import Starlette

from core.settings import load
from plugins.serve.app import Serve
from plugins.serve.http import build, uvicorn_settings

ROOT = Path(__file__).parents[3]


class Launched:
    """A server that listens at `url`."""

    def __init__(self, url: str) -> None:
        self.url, self.port = url, int(url.rpartition(":")[2])
        self.http = httpx.Client(base_url=url, timeout=60)

    def openai(self, **more: Any) -> openai.OpenAI:
        """The official client; it does not try again."""
        return openai.OpenAI(**self._given(more))

    def async_openai(self, **more: Any) -> openai.AsyncOpenAI:
        """The same with async."""
        return openai.AsyncOpenAI(**self._given(more))

    def _given(self, more: dict[str, Any]) -> dict[str, Any]:
        usual = {"base_url": self.url + "/v1", "api_key": "none", "max_retries": 0, "timeout": 60}
        return usual | more

    def post(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        """A request with a JSON body."""
        return self.http.post(path, json=body, **more)

    def events(self, path: str, body: dict[str, Any]) -> list[str]:
        """The data of each event of a stream, without the last, which is checked."""
        answer = self.post(path, {**body, "stream": True})
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        parts = answer.text.split("\n\n")
        assert parts.pop() == ""
        assert all(part.startswith("data: ") and "\n" not in part for part in parts)
        assert parts.pop() == "data: [DONE]"
        return [part.removeprefix("data: ") for part in parts]


class Running(Launched):
    """A server in this process. `engine` is what answers, `app` the application."""

    def __init__(self, port: int, engine: Any, app: Starlette) -> None:
        super().__init__(f"http://127.0.0.1:{port}")
        self.engine, self.app = engine, app


@contextmanager
def serving(
    engine: Any, model: str | Path, plugins: Sequence[str] = (), **options: Any
) -> Iterator[Running]:
    """A server whose engine is in this process. `model`: a checkpoint with a tokenizer."""
    config = load(None, [f"model.path={model}", "model.device=cpu"], plugins=plugins)
    settings = Serve.Options(**options)
    app = build(config, engine, settings)
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(app, log_config=None, log_level="error", **uvicorn_settings(settings))
    )
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    running = Running(listening.getsockname()[1], engine, app)
    try:
        # until the server accepts it, a connection waits in the socket's queue
        running.http.get("/health")
        yield running
    finally:
        running.http.close()
        server.should_exit = True
        thread.join(20)
        listening.close()
        app.state.serving.prompts.close()
        assert not thread.is_alive(), "the server does not end"


@contextmanager
def launched(*words: str, **environment: str) -> Iterator[Launched]:
    """`python -m core.run WORDS run.port=0` as a process of its own, ended behind the block."""
    command = [sys.executable, "-m", "core.run", *words, "run.port=0"]
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    said, drain = [], None
    try:
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"served at (http://\S+)", line):
                break
        else:
            raise AssertionError(f"the server did not start:\n{''.join(said)}")
        drain = threading.Thread(target=process.stderr.read, daemon=True)
        drain.start()
        running = Launched(found[1])
        yield running
        running.http.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        if drain is not None:
            drain.join(10)
        process.stderr.close()
