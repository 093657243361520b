"""Executors: who starts the workers and carries plans to them."""

from core.hooks import hookimpl


@hookimpl
def register(registries):
    registries.executors.register(
        "local",
        "plugins.executors.local:Local",
        summary="one rank in this process, further ranks in processes that it starts",
    )
    registries.executors.register(
        "torchrun",
        "plugins.executors.torchrun:Torchrun",
        summary="joins the processes that torchrun started",
    )
