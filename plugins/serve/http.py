"""Puts the endpoints together into the application that uvicorn runs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from core.errors import UserError
from core.plugins import acting
from core.plugins.blame import brief
from plugins.serve.access import AccessLog
from plugins.serve.connections import protocol
from plugins.serve.endpoints import (
    chat,
    completions,
    document,
    health,
    metrics,
    models,
    page,
    refused,
    tokens,
)
from plugins.serve.endpoints.bodies import Room
from plugins.serve.endpoints.exchange import EXPECTED
from plugins.serve.endpoints.serving import Serving, as_api_error
from plugins.serve.error_answers import answer
from plugins.serve.hosts import HostCheck, names_of
from plugins.serve.keys import KeyCheck, key_from
from plugins.serve.metrics import Meter
from plugins.serve.protocol.errors import ApiError

if TYPE_CHECKING:
    from starlette.requests import Request

    from core.config import Config
    from plugins.serve.app import Serve
    from plugins.serve.engine.client import EngineClient

log = logging.getLogger("plait")

ENDPOINTS = (health, models, completions, chat, tokens, metrics, document, page)


def build(config: Config, client: EngineClient, options: Serve.Options) -> Starlette:
    """The application, for a client whose engine has started.

    Endpoints find `config`, `client`, `options`, `meter` and `serving` in `request.app.state`.
    UserError when the key that requests must bring is not there.
    """
    key = key_from(options.api_key_env)
    middleware = [Middleware(KeyCheck, key=key)] if key is not None else []
    if options.cors:
        # outside of the key's check: a browser asks first, without a key
        middleware.insert(
            0,
            Middleware(
                CORSMiddleware,
                allow_origins=options.cors,
                allow_methods=["GET", "POST"],
                allow_headers=["Authorization", "Content-Type", "*"],
                max_age=600,
            ),
        )
    if (names := names_of(options.host, options.hosts, key)) is not None:
        middleware.insert(0, Middleware(HostCheck, names=names))
    if options.access_log:
        middleware.insert(0, Middleware(AccessLog))
    app = Starlette(
        routes=[route for module in ENDPOINTS for route in module.ROUTES],
        middleware=middleware,
        exception_handlers={
            **dict.fromkeys((*EXPECTED, UserError), _expected),
            HTTPException: _http_error,
            Exception: _unexpected,
        },
    )
    meter = Meter(client.info.model, client.info.max_length, client.info.limits.get("page_size"))
    app.state.config, app.state.client, app.state.options = config, client, options
    app.state.room = Room(options.max_body)
    app.state.meter, app.state.serving = meter, Serving.open(config, client, meter)
    acting(config).routes(app=app, engine=client)
    app.router.routes.extend(refused.ROUTES)  # last: a plugin may serve them
    return app


def uvicorn_settings(options: Serve.Options) -> dict[str, Any]:
    """What uvicorn.Config is to be given beside the application: bounds, and what is logged."""
    return {
        "http": protocol(options.max_connections, options.client_timeout),
        "ws": "none",
        "lifespan": "off",
        "timeout_keep_alive": 30,
        "access_log": False,  # it would hold queries; see `access`
        "server_header": False,
        "proxy_headers": False,
        "h11_max_incomplete_event_size": 64 * 1024,
    }


async def _expected(request: Request, error: Exception) -> Response:
    """A request that is wrong, or that nobody can answer: of our routes, or of a plugin's."""
    return answer(as_api_error(error))


async def _http_error(request: Request, error: Exception) -> Response:
    """Starlette's own: there is no such path, or it has no such method."""
    assert isinstance(error, HTTPException)
    path, method = request.url.path[:200], request.method
    sentences = {
        404: f"There is nothing at {path}.",
        405: f"{path} has no method {method}.",
    }
    message = sentences.get(error.status_code, str(error.detail))
    codes = {404: "not_found", 405: "method_not_allowed"}
    wrapped = ApiError(
        message,
        status=error.status_code,
        code=codes.get(error.status_code),
        headers=dict(error.headers or {}),
    )
    return answer(wrapped)


async def _unexpected(request: Request, error: Exception) -> Response:
    """A fault of the server, or of a plugin. The log says whose, the client does not hear it."""
    log.error("a request failed: %s", brief(error))  # uvicorn adds the traceback
    error = ApiError(
        "The server failed. Its log says why.",
        status=500,
        code="internal_error",
        headers={"Connection": "close"},  # which uvicorn does, and clients are to know
    )
    return answer(error)
