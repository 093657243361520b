"""The built-in schedulers: who runs first, and who makes room when pages run out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.hooks import hookimpl

if TYPE_CHECKING:
    from core.registry import Registries


@hookimpl
def register(registries: Registries) -> None:
    schedulers = registries.schedulers
    schedulers.register(
        "fcfs",
        "plugins.scheduling.fcfs:FirstComeFirstServed",
        summary="first come, first served",
    )
    schedulers.register(
        "priority",
        "plugins.scheduling.priority:Priority",
        summary="lower priority numbers first, equal ones by arrival",
    )
