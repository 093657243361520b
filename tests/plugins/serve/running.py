"""A server on a real port for tests: uvicorn in a thread, with an engine of the test's choice."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import uvicorn
from starlette.applications import Starlette

from core.dialect import arguments
from core.settings import from_arguments
from plugins.serve.app import Serve
from plugins.serve.http import build, uvicorn_settings


class Running:
    """A server that listens. `engine` is what answers, `app` the application."""

    def __init__(self, port: int, engine: Any, app: Starlette) -> None:
        self.port, self.engine, self.app = port, engine, app
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.url, timeout=60)

    def openai(self, **more: Any) -> openai.OpenAI:
        """The official client; it does not try again."""
        given = {"base_url": self.url + "/v1", "api_key": "none", "max_retries": 0, "timeout": 60}
        return openai.OpenAI(**(given | more))

    def async_openai(self, **more: Any) -> openai.AsyncOpenAI:
        """The same with async."""
        given = {"base_url": self.url + "/v1", "api_key": "none", "max_retries": 0, "timeout": 60}
        return openai.AsyncOpenAI(**(given | more))

    def post(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        """A request with a JSON body."""
        return self.http.post(path, json=body, **more)


@contextmanager
def serving(engine: Any, model: str | Path, **options: Any) -> Iterator[Running]:
    """A server whose engine is in this process. `model`: a checkpoint with a tokenizer."""
    config = from_arguments(arguments({"model": str(model), "device": "cpu"}))
    settings = Serve.Options(**options)
    app = build(config, engine, settings)
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", **uvicorn_settings(settings)))
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    running = Running(listening.getsockname()[1], engine, app)
    try:
        _wait(running)
        yield running
    finally:
        running.http.close()
        server.should_exit = True
        thread.join(20)
        listening.close()
        app.state.serving.prompts.close()
        assert not thread.is_alive(), "the server does not end"


def _wait(running: Running) -> None:
    running.http.get("/health")  # connections wait in the socket's queue until it accepts
