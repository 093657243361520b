"""Answers hooks that act, and one that offers."""

from core.hooks import hookimpl

seen = []


@hookimpl
def engine_started(engine):
    seen.append(engine)


@hookimpl
def open_weights(path):
    seen.append(path)
    return None
