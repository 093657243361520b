"""Seeing inside: hidden states and attention of the requests that ask. `docs/seeing-inside.md`.

It has nothing to register: it acts when a configuration names it, `plugins: [observers]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.hooks import hookimpl

if TYPE_CHECKING:
    from core.config import Config
    from core.interfaces import Observer
    from core.setup import Setup


@hookimpl
def observers(config: Config, setup: Setup) -> Observer:
    from plugins.observers.inside import Inside

    return Inside(config, setup)
