"""Raises when it has registered half of what it has."""

from core.hooks import hookimpl


@hookimpl
def register(registries):
    registries.samplers.register("half", "nowhere:Nothing")
    registries.attention.register("half", "nowhere:Nothing")
    raise RuntimeError("the licence server is away")
