"""Attention by torch's scaled_dot_product_attention: the backend to read first; it runs anywhere.

What it does for speed on a CPU: pages are copied to adjacent memory before they are used (the
tokens of one head lie too far apart in a page to be streamed), requests that decode at similar
lengths share one call, the query heads of one key/value head are rows of one product, so that no
key or value is repeated, and long prompts are worked off in tiles, which skip the keys after them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from core.interfaces import AttentionBackend
from core.types import AttentionMetadata, AttentionShape, KVLayer

TILE = 256  # queries of a prompt in one call
GROUP = 2 << 20  # bytes of keys in one call that decodes: they should stay in the CPU's cache


class Span(NamedTuple):
    """One request in a step: its queries, and the tokens that they can see."""

    start: int  # of its queries, among the step's tokens
    count: int
    row: int  # of the page table
    first_page: int
    pages: int  # that are read
    skip: int  # tokens at the start of those pages that nobody sees any more
    keys: int


class One(NamedTuple):
    """One request, ready to be computed."""

    queries: slice
    pages: Tensor  # [pages]
    seen: slice  # of the tokens in those pages


class Decodes(NamedTuple):
    """Requests of one query token each, padded to the pages P of the longest."""

    queries: Tensor  # [N]
    pages: Tensor  # [N * P]
    unseen: Tensor  # which of the N * P * page_size tokens must not be looked at
    mask: Tensor  # [N, 1, 1, P * page_size], 0 or -inf


class Sdpa(AttentionBackend):
    """torch's scaled_dot_product_attention, on any device."""

    best_page_size = 16  # pages are copied whole, so small ones copy little that nobody sees

    def __init__(self, shape: AttentionShape, options: AttentionBackend.Options) -> None:
        super().__init__(shape, options)
        self._mask: Tensor | None = None
        itemsize = (shape.cache_dtype or torch.float32).itemsize
        self._page_bytes = shape.page_size * shape.kv_heads * shape.head_dim * itemsize

    def plan(self, meta: AttentionMetadata) -> None:
        """Cut the step into calls, once for all layers of this shape."""
        spans = self._spans(meta)
        work: list[One | Decodes] = []
        decodes = sorted((s for s in spans if s.count == 1), key=lambda span: span.pages)
        while decodes:
            group = [decodes.pop()]  # the longest that is left
            longest = group[0].pages
            while (
                decodes
                and 5 * decodes[-1].pages >= 4 * longest - 5
                and (len(group) + 1) * longest * self._page_bytes <= GROUP
            ):
                group.append(decodes.pop())
            work.append(self._one(group[0], meta) if len(group) == 1 else self._group(group, meta))
        work += [self._one(span, meta) for span in spans if span.count > 1]
        meta.private = {**(meta.private or {}), self: work}  # layers of other shapes plan too

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, cache: KVLayer, meta: AttentionMetadata
    ) -> Tensor:
        out = torch.empty_like(q)
        for work in meta.private[self]:
            keys = _gather(cache.k, work.pages).to(q.dtype)
            values = _gather(cache.v, work.pages).to(q.dtype)
            if isinstance(work, Decodes):
                # Unwritten slots may hold anything, and 0 times NaN is NaN.
                keys.index_fill_(0, work.unseen, 0)
                values.index_fill_(0, work.unseen, 0)
                some = self._decode(q[work.queries], keys, values, work.mask)
                out.index_copy_(0, work.queries, some)
            else:
                rows = work.queries
                self._prompt(q[rows], keys[work.seen], values[work.seen], out[rows])
        return out

    def _spans(self, meta: AttentionMetadata) -> list[Span]:
        size, window = self.shape.page_size, self.shape.window
        spans, start = [], 0
        both = zip(meta.query_lens, meta.context_lens, strict=True)
        for row, (count, length) in enumerate(both):
            seen = 0 if window is None else max(0, length - count - window + 1)
            first = seen // size
            pages = -(-length // size) - first
            spans.append(Span(start, count, row, first, pages, seen % size, length - seen))
            start += count
        return spans

    def _one(self, span: Span, meta: AttentionMetadata) -> One:
        pages = meta.page_table[span.row, span.first_page : span.first_page + span.pages]
        queries = slice(span.start, span.start + span.count)
        return One(queries, pages, slice(span.skip, span.skip + span.keys))

    def _group(self, spans: list[Span], meta: AttentionMetadata) -> Decodes:
        device = meta.page_table.device
        start, _, row, first, pages, skip, keys = np.array(spans, np.int64).T[:, :, None]
        longest = int(pages.max())
        column = first + np.minimum(np.arange(longest), pages - 1)  # the last page, repeated
        token = np.arange(longest * self.shape.page_size)
        unseen = (token < skip) | (token >= skip + keys)  # [N, P * page_size]
        hidden = torch.from_numpy(unseen).to(device)
        mask = torch.zeros(hidden.shape, dtype=self.shape.dtype, device=device)
        return Decodes(
            torch.from_numpy(start[:, 0]).to(device),
            meta.page_table[
                torch.from_numpy(row).to(device), torch.from_numpy(column).to(device)
            ].flatten(),
            torch.from_numpy(np.flatnonzero(unseen)).to(device),
            mask.masked_fill_(hidden, -torch.inf)[:, None, None],
        )

    def _decode(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """q [N, H, D]; keys and values [N * K, KV, D]; mask [N, 1, 1, K] -> [N, H, D]."""
        kv, size = self.shape.kv_heads, self.shape.head_dim
        keys, values = (x.view(len(q), -1, kv, size).transpose(1, 2) for x in (keys, values))
        one = F.scaled_dot_product_attention(
            q.view(len(q), kv, -1, size), keys, values, attn_mask=mask, scale=self.shape.scale
        )  # [N, KV, G, D]
        return one.reshape(q.shape)

    def _prompt(self, q: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
        """q [N, H, D] are the last N of the positions of keys and values [K, KV, D]; K >= N."""
        count, length = len(q), len(keys)
        if count == 1:
            out.copy_(self._decode(q.contiguous(), keys, values, None))
            return
        kv, window = self.shape.kv_heads, self.shape.window
        keys, values = keys.transpose(0, 1), values.transpose(0, 1)  # [KV, K, D]
        grouped, places = (
            x.view(count, kv, -1, self.shape.head_dim).permute(2, 1, 0, 3) for x in (q, out)
        )  # [G, KV, N, D]
        for a in range(0, count, TILE):
            b = min(a + TILE, count)
            end = length - count + b
            start = 0 if window is None else max(0, end - (b - a) - window + 1)
            causal = end - start == b - a and (window is None or window >= b - a)
            places[:, :, a:b] = F.scaled_dot_product_attention(
                grouped[:, :, a:b],
                keys[:, start:end].expand(len(grouped), -1, -1, -1),
                values[:, start:end].expand(len(grouped), -1, -1, -1),
                attn_mask=None if causal else self._seen(b - a, end - start, q),
                is_causal=causal,
                scale=self.shape.scale,
            )

    def _seen(self, count: int, length: int, like: Tensor) -> Tensor:
        """What is added to the scores of the last `count` of `length` positions: 0 or -inf.

        A corner of one mask [TILE, longest], which ends with the tokens of a full tile.
        """
        mask = self._mask
        if mask is None or mask.shape[1] < length or mask.dtype != like.dtype:
            columns = max(2 * TILE, 1 << (length - 1).bit_length())
            mask = torch.full((TILE, columns), -torch.inf, dtype=like.dtype, device=like.device)
            last = columns - TILE
            mask.triu_(last + 1)
            if self.shape.window is not None:
                hidden = torch.full_like(mask, -torch.inf).tril_(last - self.shape.window)
                mask = torch.minimum(mask, hidden)
            self._mask = mask
        corner = mask[TILE - count :, mask.shape[1] - length :]
        if like.device.type == "cpu":
            return corner
        # CUDA's kernels read 16 bytes at once from where a mask begins. A single row in the middle
        # of another is contiguous, so only a copy begins at memory of its own.
        return corner.clone(memory_format=torch.contiguous_format)


def _gather(cache: Tensor, pages: Tensor) -> Tensor:
    """A copy of the tokens of some pages [tokens, KV, D]; the cache may have any strides."""
    if cache.is_contiguous():
        # flatten, because index_select of a strided tensor copies all of it first
        return cache.flatten(1).index_select(0, pages).view(-1, *cache.shape[2:])
    return cache[pages.long()].flatten(0, 1)
