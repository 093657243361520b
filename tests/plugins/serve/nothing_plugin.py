"""A plugin with components that compute nothing, and a path that tells the engine's counters."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from torch import Tensor

from core.hooks import hookimpl
from core.interfaces import Sampled
from core.registry import attention, runners
from core.types import Batch
from plugins.apps.bench.nothing import NoRunner


class Idle(NoRunner):
    """Token 0 for everybody, after a while in which the processor is free."""

    @dataclass
    class Options:
        seconds: float = field(default=0.0, metadata={"help": "of a step, as if a GPU computed"})

    options: Options  # type: ignore[assignment]  # the runner's own

    def run(self, batch: Batch) -> tuple[Tensor, Sampled]:
        if self.options.seconds:
            time.sleep(self.options.seconds)
        return super().run(batch)


@hookimpl
def routes(app: Any, engine: Any) -> None:
    async def counters(request: Request) -> JSONResponse:
        return JSONResponse(await engine.statistics())

    app.router.routes.append(Route("/counters", counters))


runners.register("idle", Idle)
attention.register("nothing", "plugins.apps.bench.nothing:NoAttention")
