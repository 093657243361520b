"""The attention backend `flash`: FlashAttention over the paged cache."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from core.errors import UserError
from core.interfaces import AttentionBackend
from core.types import AttentionMetadata, AttentionShape, KVLayer
from plugins.attention.flash.adapters import Flash2
from plugins.attention.flash.generations import GENERATIONS, choose

log = logging.getLogger("plait")


class Prompts(NamedTuple):
    """The requests of a step that bring several tokens; B' of them."""

    starts: tuple[Tensor, Tensor]  # [B' + 1] int32, of queries and of keys
    longest: tuple[int, int]
    cached: bool  # some of their keys are from earlier steps
    tokens: Tensor | None  # [K] int64, where in the cache their keys are, if they are gathered


class FlashAttention(AttentionBackend):
    """FlashAttention 3, 2 or 4: prompts, chunks of prompts, and decoding with split-KV."""

    @dataclass
    class Options:
        generation: int | None = field(
            default=None,
            metadata={"help": "2, 3 or 4; null: the best that is installed and fits the GPU"},
        )

        def __post_init__(self) -> None:
            known = [flash.number for flash in GENERATIONS]
            if self.generation is not None and self.generation not in known:
                raise UserError(
                    f"generation must be one of {known} or null, and is {self.generation}."
                )

    options: Options

    page_sizes = (256, 128, 64, 32, 16)
    graphable = True

    @classmethod
    def rejects(cls, shape: AttentionShape) -> list[str]:
        reasons = []
        if shape.dtype not in (torch.float16, torch.bfloat16):
            reasons.append(f"{shape.dtype} is neither float16 nor bfloat16")
        if shape.cache_dtype not in (None, shape.dtype):
            reasons.append(
                f"a cache of {shape.cache_dtype} beside {shape.dtype} is not implemented"
            )
        if shape.head_dim % 8 or not 8 <= shape.head_dim <= 256:
            reasons.append(f"head_dim {shape.head_dim} is no multiple of 8 up to 256")
        if shape.kv_heads < 1 or shape.heads % shape.kv_heads:
            reasons.append(
                f"{shape.heads} query heads cannot share {shape.kv_heads} key/value heads evenly"
            )
        if shape.window is not None and shape.window < 1:
            reasons.append(f"a window of {shape.window} tokens sees nothing")
        if shape.device != "cuda":
            return [*reasons, f"it runs on CUDA devices, not on {shape.device!r}"]
        choice = choose(shape)
        return reasons if choice.best is not None else [*reasons, *choice.against]

    def __init__(self, shape: AttentionShape, options: Options) -> None:
        super().__init__(shape, options)
        choice = choose(shape, options.generation)
        if choice.best is None:
            raise UserError(f"attention: flash: {choice}.")
        log.info("attention: flash: %s", choice)
        self._flash = choice.best(shape)

    def plan(self, meta: AttentionMetadata) -> None:
        prompts = self._prompts(meta) if meta.decodes < len(meta.context_len) else None
        meta.private = {**(meta.private or {}), self: prompts}  # layers of other shapes plan too

    def _prompts(self, meta: AttentionMetadata) -> Prompts:
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
        keys = torch.nn.functional.pad(contexts.cumsum(0, dtype=torch.int32), (1, 0))
        tokens = None
        if not self._flash.reads_pages:
            tokens = self._tokens(meta.page_table[first:], contexts, keys, sum(lengths))
        return Prompts((queries, keys), longest, cached=True, tokens=tokens)

    def _tokens(self, pages: Tensor, contexts: Tensor, starts: Tensor, total: int) -> Tensor:
        """Place in the cache [total] of every token that the requests attend to, in order."""
        size = self.shape.page_size
        of = torch.repeat_interleave(contexts, output_size=total)
        position = torch.arange(total, device=pages.device) - starts[:-1][of]
        block = torch.div(position, size, rounding_mode="floor")
        return pages[of, block].long() * size + (position - block * size)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, cache: KVLayer, meta: AttentionMetadata
    ) -> Tensor:
        prompts: Prompts | None = meta.private[self]
        n = meta.decodes
        parts = []
        if n:
            decoded = self._flash.decode(
                q[:n, None], cache, meta.page_table[:n], meta.context_len[:n]
            )
            parts.append(decoded.squeeze(1))
        if prompts is not None:
            parts.append(self._forward_prompts(q[n:], k[n:], v[n:], cache, meta, prompts))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _forward_prompts(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cache: KVLayer,
        meta: AttentionMetadata,
        prompts: Prompts,
    ) -> Tensor:
        flash = self._flash
        if prompts.cached and isinstance(flash, Flash2):
            pages = meta.page_table[meta.decodes :]
            return flash.paged_prompts(q, cache, pages, prompts.starts, prompts.longest)
        if prompts.tokens is not None:
            k, v = (_gather(x, prompts.tokens) for x in cache)
        return flash.prompts(q, k, v, prompts.starts, prompts.longest)


def _gather(cache: Tensor, tokens: Tensor) -> Tensor:
    """Tokens [K] of a cache with any strides -> [K, KV, D]."""
    if cache.is_contiguous():
        return cache.flatten(0, 1).index_select(0, tokens)
    size = cache.shape[1]
    page = torch.div(tokens, size, rounding_mode="floor")
    return cache[page, tokens - page * size]
