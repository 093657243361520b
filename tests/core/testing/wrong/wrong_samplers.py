"""Samplers with one fault each."""

from __future__ import annotations

import math

import torch

from core.interfaces import Sampled
from core.registry import samplers
from core.sampling import noise
from core.sampling.params import SamplingParams
from plugins.sampling.default import DefaultSampler


@samplers.register("torch-multinomial")
class TorchMultinomial(DefaultSampler):
    """Every rank would draw its own."""

    def __call__(self, logits, rows):
        found = super().__call__(logits, rows)
        share = (logits.float() / rows.temperature.clamp(min=1e-3)[:, None]).softmax(-1)
        drawn = torch.multinomial(share.nan_to_num(1.0), 1)[:, 0]
        plain = torch.tensor([not p.greedy and p.top_k == 0 for p in rows.params])
        return Sampled(torch.where(plain, drawn, found.ids), found.logprobs, found.errors)


class OtherNoise(DefaultSampler):
    """Draws the rows that ask for nothing but a temperature with noise of its own."""

    def keys(self, rows):
        return rows.keys

    def __call__(self, logits, rows):
        found = super().__call__(logits, rows)
        drawn = noise.draw(logits, rows.temperature, self.keys(rows))
        plain = torch.tensor([p == SamplingParams(seed=p.seed) for p in rows.params])
        ids = torch.where(plain, drawn, found.ids)
        return Sampled(ids, found.logprobs, found.errors)


@samplers.register("noise-by-place")
class NoiseByPlace(OtherNoise):
    def keys(self, rows):
        return rows.keys + torch.arange(len(rows), dtype=torch.int32)[:, None]


@samplers.register("noise-by-row")
class NoiseByRow(OtherNoise):
    def keys(self, rows):
        return rows.keys + rows.index.int()[:, None]


@samplers.register("noise-without-position")
class NoiseWithoutPosition(OtherNoise):
    def keys(self, rows):
        return noise.keys(rows.keys * 0 + 1, rows.positions * 0 + 1) + rows.index.int()[:, None] * 0


@samplers.register("greedy-in-company")
class GreedyInCompany(DefaultSampler):
    """Takes the second best for a greedy row between random ones."""

    def __call__(self, logits, rows):
        found = super().__call__(logits, rows)
        if not rows.all_greedy and len(rows) > 1:
            second = logits.float().topk(2).indices[:, 1]
            plain = torch.tensor([p == SamplingParams(temperature=0) for p in rows.params])
            found.ids = torch.where(plain, second, found.ids)
        return found


@samplers.register("one-error-for-all")
class OneErrorForAll(DefaultSampler):
    def __call__(self, logits, rows):
        found = super().__call__(logits, rows)
        if found.errors:
            found.errors = dict.fromkeys(range(len(rows)), "the step failed")
        return found


@samplers.register("silent")
class Silent(DefaultSampler):
    def __call__(self, logits, rows):
        found = super().__call__(logits, rows)
        found.errors = None
        return found


@samplers.register("draws-the-impossible")
class DrawsTheImpossible(OtherNoise):
    def __call__(self, logits, rows):
        return (
            super().__call__(logits.clamp(min=-20.0), rows)
            if _masked(logits)
            else super(OtherNoise, self).__call__(logits, rows)
        )


def _masked(logits):
    return bool((logits == -math.inf).any()) and not bool((logits == -math.inf).all(-1).any())


@samplers.register("writes-the-history")
class WritesTheHistory(DefaultSampler):
    def __call__(self, logits, rows):
        found = super().__call__(logits, rows)
        rows.record(found.ids)
        return found


@samplers.register("ids-from-1-on")
class IdsFromOneOn(DefaultSampler):
    """As some libraries count, with 0 for no token."""

    def __call__(self, logits, rows):
        found = super().__call__(logits, rows)
        found.ids = found.ids + 1
        return found


@samplers.register("minus-1-without-a-word")
class MinusOneWithoutAWord(DefaultSampler):
    """Gives up where a row is not plain."""

    def __call__(self, logits, rows):
        found = super().__call__(logits, rows)
        rich = torch.tensor([p.logit_bias is not None for p in rows.params])
        found.ids = found.ids.masked_fill(rich, -1)
        return found


@samplers.register("best-1024-alone")
class BestAlone(DefaultSampler):
    def __call__(self, logits, rows):
        found = super().__call__(logits, rows)
        if logits.shape[1] > 1024:
            best = logits.topk(1024)
            found.ids = best.indices.gather(1, rows.draw(best.values)[:, None])[:, 0]
        return found


@samplers.register("first-64-rows-alone")
class FirstRowsAlone(DefaultSampler):
    def __call__(self, logits, rows):
        found = super().__call__(logits, rows)
        found.ids = found.ids[torch.arange(len(rows)) % 64]
        return found
