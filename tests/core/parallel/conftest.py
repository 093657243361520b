"""Registers the built-in strategies, partitioners and sources for tests of the plan."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _built_in_plugins() -> None:
    import plugins.sharding
    import plugins.sources
    from core.registry import registries

    plugins.sharding.register(registries)
    plugins.sources.register(registries)
