"""The built-in runners."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.hooks import hookimpl

if TYPE_CHECKING:
    from core.registry import Registries


@hookimpl
def register(registries: Registries) -> None:
    runners = registries.runners
    runners.register(
        "eager", "plugins.runners.eager:Eager", summary="runs each operation as it comes"
    )
    runners.register(
        "cuda_graph",
        "plugins.runners.cuda_graph.runner:CudaGraph",
        summary="CUDA graphs of decode steps, and of the layers in steps with prompts",
    )
