"""Launches of the attention kernels on tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from core.triton_launch import Launcher, power_of_two
from core.types import AttentionMetadata, AttentionShape, KVLayer
from plugins.attention.triton import recipes
from plugins.attention.triton.decode import decode
from plugins.attention.triton.fused import fused
from plugins.attention.triton.order import longest_first
from plugins.attention.triton.prompt import prompt
from plugins.attention.triton.recipes import MOST_PROGRAMS, MOST_ROWS, Decoding

LOG2_E = 1.4426950408889634
KINDS = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
ORDERED_AT_ONCE = 32  # requests that a program of `longest_first` finds the place of

DECODE, FUSED, PROMPT, ORDER = map(Launcher, (decode, fused, prompt, longest_first))


@dataclass(frozen=True)
class Work:
    """What the launches of one step share."""

    decodes: int  # requests of one token, the first of the step
    requests: int
    how: Decoding | None  # None: nothing decodes
    order: Tensor | None  # [decodes] longest context first


class Launches:
    """Launches the kernels for one shape on one device.

    The parts of splits lie in memory that is allocated once, for the largest launch that splits:
    CUDA graphs hold its address. All launches must be on one stream, one after the other.
    """

    def __init__(self, shape: AttentionShape, pdl: bool) -> None:
        assert shape.dtype is not None
        self.shape, self.pdl = shape, pdl
        self.scale = shape.scale * LOG2_E
        self.window = shape.window or 0
        cached = shape.cache_dtype or shape.dtype
        # float8 becomes float16 in one instruction, bfloat16 in two
        kind = torch.float16 if cached.itemsize == 1 else shape.dtype
        self.kind, self.wide = KINDS[kind], kind == torch.float32
        self.itemsize = cached.itemsize
        self.size = power_of_two(max(shape.head_dim, 16))
        self.group = shape.heads // shape.kv_heads
        self.rows = min(power_of_two(self.group), MOST_ROWS)
        self.blocks = -(-self.group // self.rows)
        self.pack = min(self.group & -self.group, MOST_ROWS)
        self.windowed = shape.window is not None
        self.roomy = roomy(shape.device)
        self._room: tuple[Tensor, ...] = ()

    def plan(self, meta: AttentionMetadata) -> Work:
        """Choose the sizes of a step's launches; sort its requests where that pays."""
        requests, decodes = len(meta.context_len), meta.decodes
        if decodes == 0:
            return Work(0, requests, None, None)
        if not self._room:
            self._room = self._allocate(meta.context_len.device)
        how = self.how(decodes, meta.max_context)
        ordered = self._groups(decodes) >= recipes.MANY
        return Work(decodes, requests, how, self._order(meta) if ordered else None)

    def how(self, decodes: int, context: int) -> Decoding:
        """The recipe for requests of one token with contexts up to `context`."""
        # splits of nothing cost little, and each number of splits is a variant to be compiled
        bound = max(context, recipes.USUAL)
        if self.windowed:
            bound = min(bound, self.window)
        return recipes.decoding(
            self._groups(decodes), self.size, self.itemsize, bound, self.rows, self.wide
        )

    def _groups(self, decodes: int) -> int:
        return decodes * self.shape.kv_heads * self.blocks

    def decode(
        self, q: Tensor, cache: KVLayer, meta: AttentionMetadata, work: Work, out: Tensor
    ) -> None:
        """The first `work.decodes` tokens of q [T, H, D] -> out."""
        assert work.how is not None
        DECODE(
            self._grid(work),
            (
                *(q, *cache, out, *self._room),
                *(meta.page_table, meta.context_len, _order(meta, work)),
            ),
            (self.scale, self.window, meta.page_table.stride(0)),
            {
                "Q_ROW": q.stride(0),
                "Q_HEAD": q.stride(1),
                **_strides(cache),
                "GROUP": self.group,
                "BLOCKS": self.blocks,
                "ROWS": self.rows,
                "D": self.shape.head_dim,
                "DP": self.size,
                **self._split(work),
                "ORDERED": work.order is not None,
            },
            warps=work.how.warps,
            pdl=self.pdl,
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
        FUSED(
            self._grid(work),
            (
                *(qkv, *cache, rope, q_gain, k_gain, out, *self._room),
                *(meta.page_table, meta.context_len, positions, meta.slots, _order(meta, work)),
            ),
            (self.scale, eps, self.window, meta.page_table.stride(0)),
            {
                "QKV_ROW": qkv.stride(0),
                **_strides(cache),
                "KV": self.shape.kv_heads,
                "GROUP": self.group,
                "BLOCKS": self.blocks,
                "ROWS": self.rows,
                "D": self.shape.head_dim,
                "DP": self.size,
                "TURNS": rope.shape[-1],
                **self._split(work),
                "NORMED": norms is not None,
                "ORDERED": work.order is not None,
                "AHEAD": work.how.ahead,
            },
            warps=work.how.warps,
            pdl=self.pdl,
        )

    def prompt(
        self, q: Tensor, cache: KVLayer, meta: AttentionMetadata, work: Work, out: Tensor
    ) -> None:
        """The tokens of q [T, H, D] behind those that decode -> out."""
        how = recipes.prompting(self.size, self.wide, self.roomy)
        requests = work.requests - work.decodes
        tiles = (len(q) - work.decodes) // (how.rows // self.pack) + requests
        PROMPT(
            (self.shape.heads // self.pack, tiles, 1),
            (q, *cache, out, meta.page_table, meta.query_start, meta.context_len),
            (self.scale, self.window, work.decodes, work.requests, meta.page_table.stride(0)),
            {
                "Q_ROW": q.stride(0),
                "Q_HEAD": q.stride(1),
                **_strides(cache),
                "GROUP": self.group,
                "PACK": self.pack,
                "D": self.shape.head_dim,
                "DP": self.size,
                "PAGE": self.shape.page_size,
                "ROWS": how.rows,
                "TILE": how.tile,
                "STAGES": how.stages,
                "KIND": self.kind,
                "WINDOWED": self.windowed,
            },
            warps=how.warps,
        )

    def _order(self, meta: AttentionMetadata) -> Tensor:
        order = torch.empty_like(meta.context_len[: meta.decodes])
        ORDER(
            (-(-meta.decodes // ORDERED_AT_ONCE), 1, 1),
            (order, meta.context_len),
            (meta.decodes,),
            {"ROWS": ORDERED_AT_ONCE, "TILE": 128},
        )
        return order

    def _allocate(self, device: torch.device) -> tuple[Tensor, ...]:
        """Parts, peaks and totals of splits, and the counters of those that have arrived."""
        rows = MOST_PROGRAMS * self.rows
        parts, peaks, totals = (
            torch.empty(n, device=device) for n in (rows * self.size, rows, rows)
        )
        return parts, peaks, totals, torch.zeros(MOST_PROGRAMS, dtype=torch.int32, device=device)

    def _grid(self, work: Work) -> tuple[int, int, int]:
        assert work.how is not None
        return self.shape.kv_heads * self.blocks, work.how.splits, work.decodes

    def _split(self, work: Work) -> dict[str, Any]:
        how = work.how
        assert how is not None
        return {
            "PAGE": self.shape.page_size,
            "SPLITS": how.splits,
            "TILE": how.tile,
            "LEAST": how.least,
            "STAGES": how.stages,
            "KIND": self.kind,
            "WINDOWED": self.windowed,
        }


def _order(meta: AttentionMetadata, work: Work) -> Tensor:
    return meta.context_len if work.order is None else work.order


def _strides(cache: KVLayer) -> dict[str, int]:
    """From page to page, token to token and head to head; the same for keys and values."""
    k, v = cache
    assert k.stride() == v.stride()
    assert k.stride(3) == 1
    return dict(zip(("PAGE_STRIDE", "TOKEN_STRIDE", "HEAD_STRIDE"), k.stride(), strict=False))


def roomy(device: str) -> bool:
    """Whether a block may have as much shared memory as on GPUs for data centers."""
    if not device.startswith("cuda") or not torch.cuda.is_available():
        return True
    found: int = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    return found >= 160 << 10
