"""The app `serve`: an HTTP server that speaks OpenAI's protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.hooks import hookimpl

if TYPE_CHECKING:
    from core.registry import Registries


@hookimpl
def register(registries: Registries) -> None:
    registries.apps.register(
        "serve",
        "plugins.serve.app:Serve",
        needs=("starlette", "uvicorn", "msgspec", "prometheus_client"),
        summary="answer HTTP requests in OpenAI's protocol",
    )
