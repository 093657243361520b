"""A server for tests of clients: it answers as told, and keeps what it was asked."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from plugins.serve.endpoints import metrics, page
from plugins.serve.metrics import Meter
from tests.plugins.serve.fake_engine import FakeEngine


@contextmanager
def listening(app: Any, **settings: Any) -> Iterator[str]:
    """uvicorn in a thread, on any free port of the loopback; gone after the block. -> its URL."""
    config = uvicorn.Config(
        app, "127.0.0.1", 0, log_level="error", timeout_graceful_shutdown=1, **settings
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + 20
        while not server.started:
            assert thread.is_alive(), "the server ended"
            assert time.monotonic() < deadline, "the server does not start"
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive(), "the server does not end"


def said(content: str | None = None, *, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """One event of a chat's stream."""
    found = {"content": content} | delta if content is not None else delta
    return {"choices": [{"index": 0, "delta": found, "finish_reason": finish}]}


@dataclass
class Script:
    """What the next request gets; `asked` holds the bodies of all that came."""

    events: list[Any] = field(default_factory=lambda: [said("Hello."), said(finish="stop")])
    pause: float = 0.0  # seconds before each event
    done: bool = True  # whether [DONE] ends the stream
    endless: bool = False  # repeat the last event for ever
    error: tuple[int, str, dict[str, str]] | None = None  # status, message, headers
    code: str | None = None  # of that error
    key: str | None = None  # what must be brought
    raw: Callable[[bytes], list[bytes]] | None = None  # how to cut the stream into pieces
    asked: list[dict[str, Any]] = field(default_factory=list)
    left: threading.Event = field(default_factory=threading.Event)  # a client went away

    @property
    def app(self) -> Starlette:
        routes = [
            *page.ROUTES,
            *metrics.ROUTES,
            Route("/v1/models", self._models),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
        ]
        app = Starlette(routes=routes)
        app.state.client, app.state.meter = FakeEngine(), Meter("tiny", 256)
        return app

    def _locked(self, request: Request) -> Response | None:
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return _error(401, "This is not the key.", {})
        return None

    async def _models(self, request: Request) -> Response:
        return self._locked(request) or JSONResponse({"data": [{"id": "some/tiny"}]})

    async def _chat(self, request: Request) -> Response:
        if locked := self._locked(request):
            return locked
        self.asked.append(await request.json())
        if self.error:
            return _error(*self.error, self.code)
        return StreamingResponse(self._stream(), media_type="text/event-stream")

    async def _stream(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._pieces():
                yield piece
        except asyncio.CancelledError:
            self.left.set()
            raise

    async def _pieces(self) -> AsyncIterator[bytes]:
        lines = [f"data: {json.dumps(event, ensure_ascii=False)}\n\n" for event in self.events]
        lines += ["data: [DONE]\n\n"] if self.done else []
        if self.raw:
            for piece in self.raw("".join(lines).encode()):
                yield piece
            return
        for line in lines:
            await asyncio.sleep(self.pause)
            yield line.encode()
        while self.endless:
            await asyncio.sleep(0.01)
            yield f"data: {json.dumps(self.events[-1])}\n\n".encode()


def _error(status: int, message: str, headers: dict[str, str], code: str | None = None) -> Response:
    return JSONResponse({"error": {"message": message, "code": code}}, status, headers)
