"""Launches of the attention kernels on tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from core.types import AttentionMetadata, AttentionShape, KVLayer
from plugins.attention.triton import decode, fused, order, prompt, recipes
from plugins.attention.triton.recipes import MOST_PROGRAMS, MOST_ROWS, Decoding

LOG2_E = 1.4426950408889634
KINDS = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


@dataclass(frozen=True)
class Work:
    """What one step's launches share."""

    decodes: int  # requests of one token, the first of the step
    requests: int
    how: Decoding | None  # None: nothing decodes
    order: Tensor | None  # [decodes] longest context first


class Launcher:
    """Launches the kernels for one shape on one device.

    The parts of splits lie in memory that is allocated once, for the largest launch that splits:
    CUDA graphs hold its address. All launches must be on one stream, one after the other.
    """

    def __init__(self, shape: AttentionShape, pdl: bool) -> None:
        assert shape.dtype is not None
        self.shape = shape
        self.scale = shape.scale * LOG2_E
        self.window = shape.window or 0
        cached = shape.cache_dtype or shape.dtype
        # float8 becomes float16 in one instruction, bfloat16 in two
        kind = torch.float16 if cached.itemsize == 1 else shape.dtype
        self.wide = kind == torch.float32
        self.itemsize = cached.itemsize
        self.size = recipes.power(max(shape.head_dim, 16))
        self.group = shape.heads // shape.kv_heads
        self.rows = min(recipes.power(self.group), MOST_ROWS)
        self.blocks = -(-self.group // self.rows)
        self.pack = min(self.group & -self.group, MOST_ROWS)
        self.common = {
            "D": shape.head_dim,
            "DP": self.size,
            "PAGE": shape.page_size,
            "KIND": KINDS[kind],
            "WINDOWED": shape.window is not None,
        }
        self.pdl = {"PDL": True, "launch_pdl": True} if pdl else {"PDL": False}
        self.how_prompts = recipes.prompting(self.size, self.wide)
        self._room: tuple[Tensor, ...] = ()

    def room(self, device: torch.device) -> tuple[Tensor, ...]:
        """Parts, peaks and totals of splits, and the counters of those that have arrived."""
        if not self._room:
            rows = MOST_PROGRAMS * self.rows
            parts = torch.empty(rows * self.size, dtype=torch.float32, device=device)
            peaks, totals = (torch.empty(rows, device=device) for _ in range(2))
            arrivals = torch.zeros(MOST_PROGRAMS, dtype=torch.int32, device=device)
            self._room = (parts, peaks, totals, arrivals)
        return self._room

    def plan(self, meta: AttentionMetadata) -> Work:
        """Choose the sizes of a step's launches; sort its requests where that pays."""
        requests, decodes = len(meta.context_len), meta.decodes
        self.room(meta.context_len.device)
        if decodes == 0:
            return Work(0, requests, None, None)
        groups = decodes * self.shape.kv_heads * self.blocks
        bound = meta.max_context
        if self.shape.window is not None:
            bound = min(bound, self.shape.window)
        how = recipes.decoding(groups, self.size, self.itemsize, bound, self.wide)
        sorted_ = None
        if groups >= recipes.MANY:
            sorted_ = torch.empty_like(meta.context_len[:decodes])
            order.longest_first[(triton.cdiv(decodes, 32),)](
                meta.context_len, sorted_, decodes, ROWS=32, TILE=128, num_warps=4
            )
        return Work(decodes, requests, how, sorted_)

    def decode(
        self, q: Tensor, cache: KVLayer, meta: AttentionMetadata, work: Work, out: Tensor
    ) -> None:
        """The first `work.decodes` of the tokens of q [T, H, D] -> out."""
        assert work.how is not None
        decode.decode[self._grid(work)](
            q,
            *cache,
            meta.page_table,
            meta.context_len,
            meta.context_len if work.order is None else work.order,
            out,
            *self._room,
            self.scale,
            self.window,
            q.stride(0),
            q.stride(1),
            meta.page_table.stride(0),
            *_strides(cache),
            **self._sizes(work),
        )

    def fused(
        self,
        qkv: Tensor,
        norms: tuple[Tensor, Tensor, float] | None,
        rope: Tensor,
        positions: Tensor,
        cache: KVLayer,
        meta: AttentionMetadata,
        work: Work,
        out: Tensor,
    ) -> None:
        """Norm, rotation, store and attention of qkv [B, (H + 2 KV) D] -> out [B, H D]."""
        assert work.how is not None
        assert rope.is_contiguous()
        q_gain, k_gain, eps = norms if norms is not None else (qkv, qkv, 0.0)
        fused.fused[self._grid(work)](
            qkv,
            *cache,
            meta.page_table,
            meta.context_len,
            positions,
            meta.slots,
            meta.context_len if work.order is None else work.order,
            rope,
            q_gain,
            k_gain,
            out,
            *self._room,
            self.scale,
            eps,
            self.window,
            qkv.stride(0),
            meta.page_table.stride(0),
            *_strides(cache),
            KV=self.shape.kv_heads,
            TURNS=rope.shape[-1],
            NORMED=norms is not None,
            AHEAD=work.how.ahead,
            **self._sizes(work),
        )

    def prompt(
        self, q: Tensor, cache: KVLayer, meta: AttentionMetadata, work: Work, out: Tensor
    ) -> None:
        """The tokens of q [T, H, D] behind those that decode -> out."""
        how = self.how_prompts
        tokens = len(q) - work.decodes
        requests = work.requests - work.decodes
        tiles = tokens // (how.rows // self.pack) + requests
        prompt.prompt[(self.shape.heads // self.pack, tiles)](
            q,
            *cache,
            meta.page_table,
            meta.query_start,
            meta.context_len,
            out,
            self.scale,
            self.window,
            work.decodes,
            work.requests,
            q.stride(0),
            q.stride(1),
            meta.page_table.stride(0),
            *_strides(cache),
            GROUP=self.group,
            PACK=self.pack,
            ROWS=how.rows,
            TILE=how.tile,
            STAGES=how.stages,
            num_warps=how.warps,
            **self.common,
        )

    def _grid(self, work: Work) -> tuple[int, int, int]:
        assert work.how is not None
        return self.shape.kv_heads * self.blocks, work.how.splits, work.decodes

    def _sizes(self, work: Work) -> dict[str, Any]:
        how = work.how
        assert how is not None
        return {
            "GROUP": self.group,
            "BLOCKS": self.blocks,
            "ROWS": self.rows,
            "SPLITS": how.splits,
            "TILE": how.tile,
            "LEAST": how.least,
            "STAGES": how.stages,
            "ORDERED": work.order is not None,
            "num_warps": how.warps,
            **self.common,
            **self.pdl,
        }


def _strides(cache: KVLayer) -> tuple[int, int, int]:
    """Of a page, a token and a head, in elements; the same for keys and values."""
    k, v = cache
    assert k.stride() == v.stride()
    assert k.stride(3) == 1
    return k.stride(0), k.stride(1), k.stride(2)
