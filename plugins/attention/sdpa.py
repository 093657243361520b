"""Attention by torch's scaled_dot_product_attention, one request after the other.

The backend to read first, and the one that runs anywhere. What it does for speed on a CPU: whole
pages are copied to adjacent memory before they are used (heads lie too far apart in a page to be
streamed), the query heads of one key/value head are the rows of one product, so that no key or
value is repeated, and long prompts are worked off in tiles, which skip the keys after them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from core.interfaces import AttentionBackend
from core.types import AttentionMetadata, AttentionShape, KVLayer

TILE = 256  # queries


class Span(NamedTuple):
    """One request in a step: its queries, and the keys that the first of them can see or later."""

    queries: slice  # of the step's tokens
    pages: Tensor  # [pages that are read]
    skip: int  # tokens at the start of those pages that nobody sees any more
    keys: int


class Sdpa(AttentionBackend):
    """torch's scaled_dot_product_attention, on any device."""

    def __init__(self, shape: AttentionShape, options: AttentionBackend.Options) -> None:
        super().__init__(shape, options)
        self._mask: Tensor | None = None

    def plan(self, meta: AttentionMetadata) -> None:
        size, window = self.shape.page_size, self.shape.window
        spans, start = [], 0
        for row, (count, length) in enumerate(zip(meta.query_lens, meta.context_lens, strict=True)):
            first = 0 if window is None else max(0, length - count - window + 1)
            pages = meta.page_table[row, first // size : -(-length // size)]
            spans.append(Span(slice(start, start + count), pages, first % size, length - first))
            start += count
        meta.private = {**(meta.private or {}), self: spans}

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, cache: KVLayer, meta: AttentionMetadata
    ) -> Tensor:
        out = torch.empty_like(q)
        for span in meta.private[self]:
            keys = _gather(cache.k, span).to(q.dtype)
            values = _gather(cache.v, span).to(q.dtype)
            self._attend(q[span.queries], keys, values, out[span.queries])
        return out

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
        """q [N, H, D] are the last N of the positions of keys and values [K, KV, D]; K >= N."""
        count, length = len(q), len(keys)
        kv, size, window = self.shape.kv_heads, self.shape.head_dim, self.shape.window
        keys, values = keys.transpose(0, 1), values.transpose(0, 1)  # [KV, K, D]
        if count == 1:
            grouped = q.view(1, kv, -1, size)
            one = F.scaled_dot_product_attention(
                grouped, keys[None], values[None], scale=self.shape.scale
            )
            out.copy_(one.view_as(out))
            return
        grouped = q.unflatten(1, (kv, -1)).permute(2, 1, 0, 3)  # [G, KV, N, D]
        places = out.unflatten(1, (kv, -1)).permute(2, 1, 0, 3)
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
        return corner if like.device.type == "cpu" else corner.contiguous()


def _gather(cache: Tensor, span: Span) -> Tensor:
    """The tokens of a span [K, KV, D], from pages [pages, page_size, KV, D] of any strides."""
    if cache.is_contiguous():
        pages = cache.flatten(1).index_select(0, span.pages)
        tokens = pages.view(-1, *cache.shape[2:])
    else:
        tokens = cache[span.pages.long()].flatten(0, 1)
    return tokens[span.skip : span.skip + span.keys]
