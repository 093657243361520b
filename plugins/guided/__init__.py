"""Answers in a given form: JSON of a schema, an expression, choices, a grammar. It needs the extra
`guided`; `docs/structured-output.md` says how to use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.hooks import hookimpl

if TYPE_CHECKING:
    from core.registry import Registries


@hookimpl
def register(registries: Registries) -> None:
    registries.processors.register(
        "guided",
        "plugins.guided.processor:Guided",
        needs=("llguidance",),
        summary="holds answers to the form of structured_outputs",
    )
