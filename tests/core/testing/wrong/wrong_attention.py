"""Attention backends with one fault each."""

from __future__ import annotations

from dataclasses import replace

import torch

from core.registry import attention
from examples.one_file.naive_attention import Naive
from plugins.attention.sdpa import Sdpa


@attention.register("window-one-too-wide")
class WindowOneTooWide(Sdpa):
    def __init__(self, shape, options):
        window = None if shape.window is None else shape.window + 1
        super().__init__(replace(shape, window=window), options)


@attention.register("own-scale")
class OwnScale(Sdpa):
    def __init__(self, shape, options):
        super().__init__(replace(shape, scale=shape.head_dim**-0.5), options)


@attention.register("heads-interleaved")
class HeadsInterleaved(Sdpa):
    def forward(self, q, k, v, cache, meta):
        kv = self.shape.kv_heads
        mixed = q.unflatten(1, (-1, kv)).transpose(1, 2).flatten(1, 2)
        out = super().forward(mixed.contiguous(), k, v, cache, meta)
        return out.unflatten(1, (kv, -1)).transpose(1, 2).flatten(1, 2)


@attention.register("reads-unwritten-slots")
class ReadsUnwrittenSlots(Sdpa):
    """Masks what it must not see, but multiplies it by nought: nought times NaN is NaN."""

    def forward(self, q, k, v, cache, meta):
        out = super().forward(q, k, v, cache, meta)
        last = meta.page_table[torch.arange(len(meta.context_lens)), 0].long()
        return out + 0 * cache.v[last].sum()


@attention.register("plans-once")
class PlansOnce(Sdpa):
    first = None

    def plan(self, meta):
        if self.first is None or len(self.first.query_lens) != len(meta.query_lens):
            self.first = meta
            super().plan(meta)
        else:
            meta.private = {**(meta.private or {}), self: self.first.private[self]}


@attention.register("forgets-other-layers")
class ForgetsOtherLayers(Sdpa):
    def plan(self, meta):
        meta.private = None
        super().plan(meta)


@attention.register("stores-keys-again")
class StoresKeysAgain(Sdpa):
    """At the slots of another page size."""

    def forward(self, q, k, v, cache, meta):
        out = super().forward(q, k, v, cache, meta)
        size = cache.k.shape[1]
        cache.k[meta.slots // size, 0] = k.to(cache.k.dtype)
        return out


@attention.register("scales-queries-in-place")
class ScalesQueriesInPlace(Sdpa):
    def forward(self, q, k, v, cache, meta):
        out = super().forward(q, k, v, cache, meta)
        q.mul_(self.shape.scale)
        return out


@attention.register("half-precision")
class HalfPrecision(Sdpa):
    def forward(self, q, k, v, cache, meta):
        return super().forward(q.bfloat16().to(q.dtype), k, v, cache, meta)


@attention.register("adjacent-pages")
class AdjacentPages(Sdpa):
    """Takes pages to follow one another."""

    def plan(self, meta):
        width = torch.arange(meta.page_table.shape[1], dtype=torch.int32)
        guessed = (meta.page_table[:, :1] + width).clamp(max=int(meta.page_table[:, 0].max()))
        super().plan(replace(meta, page_table=guessed, private=None) if width.numel() else meta)
        meta.private = {**(meta.private or {}), self: []}
        again = replace(meta, page_table=guessed, private=None)
        super().plan(again)
        meta.private[self] = again.private[self]


@attention.register("ignores-strides")
class IgnoresStrides(Sdpa):
    def forward(self, q, k, v, cache, meta):
        packed = torch.as_strided(q, q.shape, (q.shape[1] * q.shape[2], q.shape[2], 1))
        return super().forward(packed, k, v, cache, meta)


@attention.register("new-tokens-alone")
class NewTokensAlone(Sdpa):
    """Right for a whole prompt: forgets what was in the cache before a chunk."""

    def plan(self, meta):
        super().plan(replace(meta, context_lens=list(meta.context_lens)))
        chunk = [n if n > 1 else c for n, c in zip(meta.query_lens, meta.context_lens, strict=True)]
        short = replace(meta, context_lens=chunk, private=None)
        super().plan(short)
        meta.private = {**(meta.private or {}), self: short.private[self]}


@attention.register("largest-score-not-subtracted")
class LargestScoreNotSubtracted(Naive):
    """exp() of a score, which overflows."""

    def _attend(self, q, keys, values):
        scores = torch.einsum("nhd,khd->hnk", q, keys) * self.shape.scale
        places = torch.arange(len(keys))
        own = places[len(keys) - len(q) :, None]
        seen = (places <= own) & (places > own - (self.shape.window or len(keys)))
        weights = scores.exp() * seen
        return torch.einsum("hnk,khd->nhd", weights / weights.sum(-1, keepdim=True), values)


@attention.register("last-tokens-alone")
class LastTokensAlone(Naive):
    """Decoding has room for the scores of 2048 tokens."""

    def _attend(self, q, keys, values):
        if len(q) == 1:
            keys, values = keys[-2048:], values[-2048:]
        return super()._attend(q, keys, values)


@attention.register("first-requests-alone")
class FirstRequestsAlone(Sdpa):
    """The grid of a launch ends."""

    def forward(self, q, k, v, cache, meta):
        out = super().forward(q, k, v, cache, meta)
        out[256:] *= len(meta.query_lens) <= 256
        return out


@attention.register("slots-overwritten")
class SlotsOverwritten(Sdpa):
    """Keeps what it has planned in the step's own tensors; keys are stored by them."""

    def plan(self, meta):
        super().plan(meta)
        meta.slots.zero_()


@attention.register("elsewhere")
class Elsewhere(Sdpa):
    """Returns what it is to write."""

    def forward_into(self, q, k, v, cache, meta, out):
        self.forward(q, k, v, cache, meta)


@attention.register("prompts-into-the-first-rows")
class PromptsIntoTheFirstRows(Sdpa):
    def forward_into(self, q, k, v, cache, meta, out):
        found = self.forward(q, k, v, cache, meta)
        n = meta.decodes
        out.copy_(torch.cat((found[n:], found[:n])))


@attention.register("cannot-be-warmed")
class CannotBeWarmed(Sdpa):
    """Knows its sizes from the first step on."""

    def plan(self, meta):
        super().plan(meta)
        self.width = meta.page_table.shape[1]

    def warm(self, cache, limits):
        self.buffer = torch.empty(limits.max_num_seqs, self.width)


@attention.register("first-step-for-ever")
class FirstStepForEver(Naive):
    """What a captured step holds is not brought up to date."""

    def static(self, limits, batch):
        return {}

    def refresh(self, static, meta):
        static.setdefault("lengths", (meta.query_lens, meta.context_lens))

    def forward(self, q, k, v, cache, meta):
        if meta.private:
            query, context = meta.private[self]["lengths"]
            meta = replace(meta, query_lens=query, context_lens=context)
        return super().forward(q, k, v, cache, meta)
