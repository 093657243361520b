"""`/metrics`: the server's counters for Prometheus."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from core.errors import EngineDead


async def metrics(request: Request) -> Response:
    """All of them, as of now. Those that the engine knows are missing once it is gone."""
    state = request.app.state
    try:
        state.meter.gauges(await state.client.statistics())
    except EngineDead:
        state.meter.gauges(None)
    return Response(state.meter.exposition(), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


ROUTES = [Route("/metrics", metrics)]
