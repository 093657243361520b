"""An attention backend: softmax(q k^T) v as it stands in the textbook, request by request.

    python -m core.run configs/qwen3-tiny.yaml -p examples/one_file/naive_attention.py \\
        attention=naive

Slow, and easy to check. It reads a paged cache, mixes prompts and decoding in one step, and knows
grouped heads and sliding windows: all that a backend must be able to do, or refuse in `rejects`.
"""

import torch

from core.interfaces import AttentionBackend
from core.registry import attention


@attention.register("naive", summary="the textbook's formula, a request at a time")
class Naive(AttentionBackend):
    @classmethod
    def rejects(cls, shape):
        # nothing to refuse: any head size, page size, dtype and device
        return []

    def forward(self, q, k, v, cache, meta):
        """q [T, H, D]; the T new keys and values are in `cache` already -> [T, H, D]."""
        out = torch.empty_like(q)
        start = 0
        for row, (count, length) in enumerate(zip(meta.query_lens, meta.context_lens, strict=True)):
            mine = slice(start, start + count)  # this request's tokens among the step's T
            keys, values = (self._read(x, meta.page_table[row], length) for x in cache)
            out[mine] = self._attend(q[mine].float(), keys, values).to(q.dtype)
            start += count
        return out

    def _read(self, pages, table, length):
        """The first `length` tokens of a request, from its pages -> [length, H, D]."""
        size = self.shape.page_size
        table = table[: -(-length // size)].long()  # what stands behind the last page is arbitrary
        tokens = pages[table].flatten(0, 1)[:length].float()  # [length, KV, D]
        return tokens.repeat_interleave(self.shape.heads // self.shape.kv_heads, dim=1)

    def _attend(self, q, keys, values):
        """q [N, H, D] are the last N of the positions in keys and values [K, H, D]."""
        places = torch.arange(len(keys), device=q.device)
        own = places[len(keys) - len(q) :, None]  # [N, 1]
        seen = places <= own
        if self.shape.window is not None:
            seen &= places > own - self.shape.window
        scores = torch.einsum("nhd,khd->hnk", q, keys) * self.shape.scale
        scores = scores.masked_fill(~seen, -torch.inf)
        return torch.einsum("hnk,khd->nhd", scores.softmax(-1), values)
