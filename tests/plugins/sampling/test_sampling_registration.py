"""What the plugin registers can be imported, and is what it says."""

from __future__ import annotations

from core.interfaces import LogitsProcessor, Sampler
from core.registry import Registries
from plugins import sampling
from plugins.sampling.default import BUILT_IN, DefaultSampler


def test_every_name_leads_to_its_class() -> None:
    registries = Registries()
    sampling.register(registries)
    assert registries.samplers.get("default") is DefaultSampler
    assert issubclass(DefaultSampler, Sampler)
    processors = {registries.processors.get(name) for name in registries.processors.names()}
    assert processors == set(BUILT_IN)
    assert all(issubclass(processor, LogitsProcessor) for processor in processors)
    assert all(entry.summary for kind in registries.all().values() for entry in kind.entries())
