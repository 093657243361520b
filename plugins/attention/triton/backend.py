"""The attention backend `triton`: paged split-KV decode, fused or plain, and paged prompts."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from core.interfaces import AttentionBackend
from core.types import AttentionMetadata, AttentionShape, KVLayer

if TYPE_CHECKING:
    from plugins.attention.triton.launch import Work

LARGEST_HEAD = 256
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class TritonAttention(AttentionBackend):
    """Paged attention in Triton: any page size, grouped queries, sliding windows, CUDA graphs."""

    @dataclass
    class Options:
        fused: bool = field(
            default=True,
            metadata={
                "help": "in steps that only decode, norm, rotate and store inside of attention"
            },
        )
        pdl: bool = field(
            default=True,
            metadata={
                "help": "let a kernel start while the one before it ends (programmatic dependent "
                "launch), on devices of compute capability 9 and above"
            },
        )

    options: Options

    graphable = True

    @classmethod
    def rejects(cls, shape: AttentionShape) -> list[str]:
        reasons = []
        interpreted = _interpreted()
        if shape.device != "cuda" and not interpreted:
            reasons.append(
                f"it runs on CUDA devices, not on {shape.device!r}; TRITON_INTERPRET=1 makes it "
                "run anywhere, slowly"
            )
        elif shape.device == "cuda" and torch.cuda.get_device_capability() < (8, 0):
            reasons.append("it needs a device of compute capability 8.0 (Ampere) or above")
        if shape.kv_heads < 1 or shape.heads % shape.kv_heads:
            reasons.append(
                f"{shape.heads} query heads cannot share {shape.kv_heads} key/value heads evenly"
            )
        if not 1 <= shape.head_dim <= LARGEST_HEAD:
            reasons.append(f"head_dim {shape.head_dim} is above {LARGEST_HEAD}")
        if shape.scale <= 0:
            reasons.append(f"the scale of scores must be positive, and is {shape.scale}")
        if shape.window is not None and shape.window < 1:
            reasons.append(f"a window of {shape.window} tokens sees nothing")
        if shape.dtype not in FLOATS:
            reasons.append(f"{shape.dtype} is not one of float32, float16 and bfloat16")
        elif interpreted and shape.dtype == torch.bfloat16:
            reasons.append("Triton's interpreter cannot multiply bfloat16")
        cached = shape.cache_dtype or shape.dtype
        if cached not in (*FLOATS, torch.float8_e4m3fn):
            reasons.append(
                f"a cache of {cached} is not one of float32, float16, bfloat16 and float8_e4m3fn"
            )
        return reasons

    def __init__(self, shape: AttentionShape, options: Options) -> None:
        super().__init__(shape, options)
        from plugins.attention.triton.launch import Launcher

        pdl = (
            options.pdl
            and shape.device == "cuda"
            and not _interpreted()
            and torch.cuda.get_device_capability() >= (9, 0)
        )
        self._launcher = Launcher(shape, pdl)

    def plan(self, meta: AttentionMetadata) -> None:
        work = self._launcher.plan(meta)
        meta.private = {**(meta.private or {}), self: work}  # layers of other shapes plan too

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, cache: KVLayer, meta: AttentionMetadata
    ) -> Tensor:
        work: Work = meta.private[self]
        out = q.new_empty(q.shape)
        if work.decodes:
            self._launcher.decode(q, cache, meta, work, out)
        if work.requests > work.decodes:
            self._launcher.prompt(q, cache, meta, work, out)
        return out

    def fuses(self, meta: AttentionMetadata) -> bool:
        """Whether every request of the step brings one token."""
        return self.options.fused and meta.decodes == len(meta.context_len)

    def forward_fused(
        self,
        qkv: Tensor,
        norms: tuple[Tensor, Tensor, float] | None,
        rope: Tensor,
        positions: Tensor,
        cache: KVLayer,
        meta: AttentionMetadata,
    ) -> Tensor:
        out = qkv.new_empty(len(qkv), self.shape.heads * self.shape.head_dim)
        self._launcher.fused(qkv, norms, rope, positions, cache, meta, meta.private[self], out)
        return out


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"
