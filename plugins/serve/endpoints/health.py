"""`/health` and `/version`: whether the engine runs, and what runs."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


async def health(request: Request) -> Response:
    """200, or 503 once the engine is gone."""
    return Response(status_code=200 if request.app.state.client.alive else 503)


async def version(request: Request) -> Response:
    """The version of Plait."""
    return JSONResponse({"version": request.app.state.client.info.version})


ROUTES = [Route("/health", health), Route("/version", version)]
