"""Registers a component, but one of its hooks is misspelt."""

from core.hooks import hookimpl


@hookimpl
def register(registries):
    registries.samplers.register("misspelt", "nowhere:Nothing")


@hookimpl
def engine_startd(engine):
    pass
