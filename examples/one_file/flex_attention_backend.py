"""An attention backend: PyTorch's FlexAttention, with a block mask made for each step.

    python -m core.run configs/qwen3-tiny.yaml -p examples/one_file/flex_attention_backend.py \\
        attention=flex

Keys and values are copied from their pages first: slots that nobody has written may hold NaN, and
FlexAttention multiplies what its mask hides by 0, which leaves NaN. On CUDA torch.compile makes one
fused kernel of the rest; its first calls take seconds. On a CPU that takes a C++ compiler, too, so
there the default is torch's own unfused code: it holds all scores of a call, queries times keys
times heads, in memory at once. `attention.compile=true` fuses on a CPU as well.
Source: Dong et al. 2024, arXiv 2412.05496.
"""

from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from core.interfaces import AttentionBackend
from core.registry import attention

BLOCK = 128  # queries, and keys, that the mask decides about at once


@attention.register("flex", summary="PyTorch's FlexAttention")
class Flex(AttentionBackend):
    @dataclass
    class Options:
        compile: bool | None = field(
            default=None, metadata={"help": "fuse with torch.compile; null: on CUDA"}
        )

    @classmethod
    def rejects(cls, shape):
        if shape.device == "cuda" and shape.head_dim < 16:
            return [f"its kernels need heads of 16 or more, and these have {shape.head_dim}."]
        return []

    def __init__(self, shape, options):
        super().__init__(shape, options)
        fused = options.compile if options.compile is not None else shape.device == "cuda"
        backend = "inductor" if fused else "eager"
        self._flex = torch.compile(flex_attention, dynamic=True, backend=backend)

    def plan(self, meta):
        """Requests that decode share a call; each other one has a call of its own."""
        ends = [0, meta.decodes, *range(meta.decodes + 1, len(meta.query_lens) + 1)]
        calls = [Call(meta, a, b, self.shape) for a, b in pairwise(ends) if a < b]
        meta.private = (meta.private or {}) | {self: calls}

    def forward(self, q, k, v, cache, meta):
        """q [T, H, D]; the T new keys and values are in `cache` already -> [T, H, D]."""
        out = torch.empty_like(q)
        for call in meta.private[self]:
            queries = q[call.tokens].unflatten(0, call.size)  # [B, Q, H, D]
            keys, values = (x[call.pages, call.offsets].to(q.dtype) for x in cache)  # [B, K, KV, D]
            found = self._flex(
                *(x.transpose(1, 2) for x in (queries, keys, values)),
                block_mask=call.mask,
                scale=self.shape.scale,
                enable_gqa=True,
            )
            out[call.tokens] = found.transpose(1, 2).flatten(0, 1)
        return out


class Call:
    """Requests `first` to `last` of a step, which have the same number of queries."""

    def __init__(self, meta, first, last, shape):
        count, longest = meta.query_lens[first], max(meta.context_lens[first:last])
        start = sum(meta.query_lens[:first])
        self.size = (last - first, count)
        self.tokens = slice(start, start + (last - first) * count)
        length = meta.context_len[first:last].long()  # [B]
        places = torch.arange(-(-longest // BLOCK) * BLOCK, device=length.device)  # [K]
        # behind a request's last token its first is repeated: hidden, but certainly no NaN
        written = places.where(places < length[:, None], 0)  # [B, K]
        self.pages = meta.page_table[first:last].long().gather(1, written // shape.page_size)
        self.offsets = written % shape.page_size
        before = length - count
        window = shape.window or longest

        def visible(b, h, query, key):
            own = before[b] + query
            return (key <= own) & (key > own - window)

        # of each block of queries: the first and the last key that any of them sees, in blocks
        at = before[:, None] + torch.arange(0, count, BLOCK, device=length.device)  # [B, QB]
        lowest = (at - window + 1).clamp(min=0) // BLOCK
        highest = torch.minimum(at + BLOCK, length[:, None]) - 1
        blocks = len(places) // BLOCK
        listed = lowest[..., None] + torch.arange(blocks, device=length.device)
        self.mask = BlockMask.from_kv_blocks(
            (highest // BLOCK - lowest + 1).int()[:, None],  # [B, 1, QB]
            listed.clamp(max=blocks - 1).int()[:, None],  # [B, 1, QB, KB]
            BLOCK_SIZE=BLOCK,
            mask_mod=visible,
            seq_lengths=(count, len(places)),
        )
