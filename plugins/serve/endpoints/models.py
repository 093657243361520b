"""`/v1/models`: the one model that is served."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from plugins.serve.endpoints.frames import encode
from plugins.serve.endpoints.serving import Serving
from plugins.serve.protocol.models import Model, ModelList


def _model(serving: Serving) -> Model:
    info = serving.info
    return Model(
        id=info.model, created=serving.started, root=info.model, max_model_len=info.max_length
    )


async def models(request: Request) -> Response:
    """A list with one entry."""
    found = ModelList(data=[_model(request.app.state.serving)])
    return Response(encode(found), media_type="application/json")


async def model(request: Request) -> Response:
    """The model by its name, which may hold slashes. 404 for any other name."""
    serving: Serving = request.app.state.serving
    serving.check_model(request.path_params["id"])
    return Response(encode(_model(serving)), media_type="application/json")


ROUTES = [Route("/v1/models", models), Route("/v1/models/{id:path}", model)]
