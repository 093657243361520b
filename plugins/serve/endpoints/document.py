"""`/openapi.json`: what the server answers, for programs."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from plugins.serve.endpoints.frames import encode
from plugins.serve.protocol.document import document


async def openapi(request: Request) -> Response:
    """The OpenAPI document."""
    found = document(request.app.state.client.info.version)
    return Response(encode(found), media_type="application/json")


ROUTES = [Route("/openapi.json", openapi)]
