"""Makes the components known that compute nothing: what is left of a step is the host's work."""

from __future__ import annotations

from core.registry import attention, runners

runners.register("nothing", "plugins.apps.bench.nothing:NoRunner")
attention.register("nothing", "plugins.apps.bench.nothing:NoAttention")
