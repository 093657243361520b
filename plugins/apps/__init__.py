"""The apps that come with Plait: what `run:` can name besides a plugin's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.hooks import hookimpl

if TYPE_CHECKING:
    from core.registry import Registries


@hookimpl
def register(registries: Registries) -> None:
    apps = registries.apps
    apps.register(
        "generate", "plugins.apps.generate:Generate", summary="complete one prompt or many"
    )
    apps.register("chat", "plugins.apps.chat:Chat", summary="talk with the model in the terminal")
    apps.register(
        "bench", "plugins.apps.bench.app:Bench", summary="measure speed on fixed workloads"
    )
    apps.register(
        "plan",
        "plugins.apps.plan.app:Plan",
        summary="show how every weight would be cut, without loading any",
    )
