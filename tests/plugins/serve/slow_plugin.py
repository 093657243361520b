"""A plugin that makes every step take a while, and adds a path to the server."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from core.hooks import hookimpl
from core.sampling.params import SamplingParams

SECONDS = 0.02  # a step


@hookimpl
def step_done(plan: Any, output: Any, seconds: float) -> None:
    time.sleep(SECONDS)


@hookimpl
def routes(app: Any, engine: Any) -> None:
    async def repeat(request: Request) -> JSONResponse:
        """What the engine answers to a prompt of one token, as ids."""
        params = SamplingParams(max_tokens=3, temperature=0.0)
        pieces = [piece async for piece in engine.submit([5], params)]
        return JSONResponse([token for piece in pieces for token in piece.ids])

    app.router.routes.append(Route("/ids", repeat))
