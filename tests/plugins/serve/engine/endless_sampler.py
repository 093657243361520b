"""A sampler that is asked for ever about requests of seven tokens."""

from __future__ import annotations

import time

from core import registry
from core.sampling.params import SamplingParams
from plugins.sampling.default import DefaultSampler


@registry.samplers.register("endless")
class Endless(DefaultSampler):
    """The default one otherwise."""

    def slow(self, params: SamplingParams) -> bool:
        return params.max_tokens == 7 or super().slow(params)

    def accepts(self, params: SamplingParams) -> list[str]:
        if params.max_tokens == 7:
            time.sleep(3600)
        return super().accepts(params)
