"""The apps `serve`, an HTTP server that speaks OpenAI's protocol, and `batch`, the same offline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.hooks import hookimpl

if TYPE_CHECKING:
    from core.registry import Registries


NEEDS = ("starlette", "uvicorn", "msgspec", "prometheus_client")


@hookimpl
def register(registries: Registries) -> None:
    registries.apps.register(
        "serve",
        "plugins.serve.app:Serve",
        needs=NEEDS,
        summary="answer HTTP requests in OpenAI's protocol",
    )
    registries.apps.register(
        "batch",
        "plugins.serve.batch.app:Batch",
        needs=NEEDS,
        summary="answer a file of requests in OpenAI's batch format",
    )
