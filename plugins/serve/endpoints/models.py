"""`/v1/models`: the one model that is served."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

STARTED = int(time.time())


async def models(request: Request) -> Response:
    """A list with one entry."""
    info = request.app.state.client.info
    entry = {"id": info.model, "object": "model", "created": STARTED, "owned_by": "plait"}
    entry["max_model_len"] = info.max_length
    return JSONResponse({"object": "list", "data": [entry]})


ROUTES = [Route("/v1/models", models)]
