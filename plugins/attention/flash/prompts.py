"""Prompts and chunks of prompts by FlashAttention: what `flash`, and others, do with them."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from core.types import AttentionMetadata, KVLayer
from plugins.attention.flash.adapters import Flash, Flash2


class Prompts(NamedTuple):
    """The requests of a step that bring several tokens; B' of them."""

    starts: tuple[Tensor, Tensor]  # [B' + 1] int32, of queries and of keys
    longest: tuple[int, int]
    cached: bool  # some of their keys are from earlier steps
    tokens: Tensor | None  # [K] int64, where in the cache their keys are, if they are gathered


class FlashPrompts:
    """Attention of the requests behind those that decode.

    Without cached tokens the step's own keys and values are read. Otherwise they are read from the
    cache page by page, if the generation can, or gathered: that is a copy of what the requests
    attend to, small beside the products of hundreds of query tokens with it.
    """

    def __init__(self, flash: Flash) -> None:
        self._flash = flash
        self._paged = flash if isinstance(flash, Flash2) and flash.fits_pages else None

    def plan(self, meta: AttentionMetadata) -> Prompts:
        """Once a step. The lengths of the requests must be known on the host."""
        first = meta.decodes
        counts, lengths = meta.query_lens[first:], meta.context_lens[first:]
        assert lengths, "the lengths of prompts must be known on the host"
        queries = meta.query_start[first:]
        if first:
            queries = queries - queries[0]
        longest = (max(counts), max(lengths))
        if counts == lengths:
            return Prompts((queries, queries), longest, cached=False, tokens=None)
        contexts = meta.context_len[first:]
        keys = F.pad(contexts.cumsum(0, dtype=torch.int32), (1, 0))
        tokens = None
        if self._paged is None:
            tokens = self._tokens(meta.page_table[first:], contexts, keys, sum(lengths))
        return Prompts((queries, keys), longest, cached=True, tokens=tokens)

    def _tokens(self, pages: Tensor, contexts: Tensor, starts: Tensor, total: int) -> Tensor:
        """Place in the cache [total] of every token that the requests attend to, in order."""
        size = self._flash.shape.page_size
        of = torch.repeat_interleave(contexts, output_size=total)
        position = torch.arange(total, device=pages.device) - starts[:-1][of]
        block = torch.div(position, size, rounding_mode="floor")
        return pages[of, block].long() * size + (position - block * size)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cache: KVLayer,
        meta: AttentionMetadata,
        prompts: Prompts,
    ) -> Tensor:
        """q [T', H, D], k and v [T', KV, D], of the tokens behind those that decode -> as q."""
        if prompts.cached and self._paged is not None:
            pages = meta.page_table[meta.decodes :]
            return self._paged.paged_prompts(q, cache, pages, prompts.starts, prompts.longest)
        if prompts.tokens is not None:
            k, v = (_gather(x, prompts.tokens) for x in cache)
        return self._flash.prompts(q, k, v, prompts.starts, prompts.longest)


def _gather(cache: Tensor, tokens: Tensor) -> Tensor:
    """Tokens [K] of a cache with any strides -> [K, KV, D]."""
    if cache.is_contiguous():
        return cache.flatten(0, 1).index_select(0, tokens)
    size = cache.shape[1]
    page = torch.div(tokens, size, rounding_mode="floor")
    return cache[page, tokens - page * size]
