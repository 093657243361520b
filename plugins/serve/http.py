"""Puts the endpoints together into the application that uvicorn runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.applications import Starlette

from plugins.serve.endpoints import health, models

if TYPE_CHECKING:
    from core.config import Config
    from plugins.serve.app import Serve
    from plugins.serve.engine.client import EngineClient

ENDPOINTS = [health, models]


def build(config: Config, client: EngineClient, options: Serve.Options) -> Starlette:
    """The application: every endpoint finds these three in `request.app.state`."""
    app = Starlette(routes=[route for module in ENDPOINTS for route in module.ROUTES])
    app.state.config, app.state.client, app.state.options = config, client, options
    return app
