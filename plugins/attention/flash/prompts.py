"""Prompts and chunks of prompts by FlashAttention: what `flash`, and others, do with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from core.types import AttentionMetadata, KVLayer
from plugins.attention.flash.adapters import Flash, Flash2

GATHERED = 1 << 17  # keys that are copied at once, unless a single request has more


class Prompts(NamedTuple):
    """Requests of a step that bring several tokens, and follow one another; B' of them."""

    queries: slice  # which of the tokens behind those that decode are theirs; the last has the rest
    starts: tuple[Tensor, Tensor]  # [B' + 1] int32, of queries and of keys
    longest: tuple[int, int]
    pages: Tensor | None  # [B', P], if some of their keys are from earlier steps
    tokens: Tensor | None  # [K] int64, where in the cache their keys are, if they are gathered


class FlashPrompts:
    """Attention of the requests behind those that decode.

    Without cached tokens the step's own keys and values are read. Otherwise they are read from the
    cache page by page, if the generation can, or gathered: that is a copy of what the requests
    attend to, small beside the products of hundreds of query tokens with it. As requests may have
    much of it in common, there is no end to what all of them attend to: so they are taken in turns.
    """

    def __init__(self, flash: Flash) -> None:
        self._flash = flash
        self._paged = flash if isinstance(flash, Flash2) and flash.fits_pages else None

    def plan(self, meta: AttentionMetadata) -> list[Prompts]:
        """Once a step. The lengths of the requests must be known on the host."""
        first = meta.decodes
        counts, lengths = meta.query_lens[first:], meta.context_lens[first:]
        assert lengths, "the lengths of prompts must be known on the host"
        queries = meta.query_start[first:]
        if first:
            queries = queries - queries[0]
        if counts == lengths:
            longest = max(counts)
            return [Prompts(slice(0, None), (queries, queries), (longest, longest), None, None)]
        contexts, pages = meta.context_len[first:], meta.page_table[first:]
        found, begun = [], 0
        for part in [slice(0, len(counts))] if self._paged else _turns(lengths):
            keys = F.pad(contexts[part].cumsum(0, dtype=torch.int32), (1, 0))
            starts = queries[part.start : part.stop + 1]
            until = begun + sum(counts[part])
            tokens = None
            if self._paged is None:
                tokens = self._tokens(pages[part], contexts[part], keys, sum(lengths[part]))
            found.append(
                Prompts(
                    slice(begun, until if part.stop < len(counts) else None),
                    (starts - starts[0] if part.start else starts, keys),
                    (max(counts[part]), max(lengths[part])),
                    pages[part],
                    tokens,
                )
            )
            begun = until
        return found

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
        prompts: Sequence[Prompts],
        out: Tensor | None = None,
    ) -> Tensor:
        """q [T', H, D], k and v [T', KV, D], of the tokens behind those that decode -> as q.

        In `out`, if that is given.
        """
        if len(prompts) > 1 and out is None:
            out = torch.empty_like(q)
        for some in prompts:
            place = None if out is None else out[some.queries]
            found = self._some(q[some.queries], k, v, cache, some, place)
        return found if out is None else out

    def _some(
        self, q: Tensor, k: Tensor, v: Tensor, cache: KVLayer, prompts: Prompts, out: Tensor | None
    ) -> Tensor:
        starts, longest = prompts.starts, prompts.longest
        if prompts.pages is not None and self._paged is not None:
            found = self._paged.paged_prompts(q, cache, prompts.pages, starts, longest)
            return found if out is None else out.copy_(found)
        if prompts.tokens is not None:
            k, v = (_gather(x, prompts.tokens) for x in cache)
        return self._flash.prompts(q, k, v, starts, longest, out)


def _turns(lengths: Sequence[int]) -> Iterator[slice]:
    """Requests of together at most `GATHERED` keys, or single ones."""
    begun = total = 0
    for at, length in enumerate(lengths):
        if at > begun and total + length > GATHERED:
            yield slice(begun, at)
            begun, total = at, 0
        total += length
    yield slice(begun, len(lengths))


def _gather(cache: Tensor, tokens: Tensor) -> Tensor:
    """Tokens [K] of a cache with any strides -> [K, KV, D]."""
    if cache.is_contiguous():
        return cache.flatten(0, 1).index_select(0, tokens)
    size = cache.shape[1]
    page = torch.div(tokens, size, rounding_mode="floor")
    return cache[page, tokens - page * size]
