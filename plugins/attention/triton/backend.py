"""The attention backend `triton`: paged split-KV decode, fused or plain, and paged prompts."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from core.errors import UserError
from core.interfaces import AttentionBackend
from core.triton_launch import interpreted, pdl
from core.types import AttentionMetadata, AttentionShape, KVLayer, Limits
from plugins.attention.flash.generations import choose
from plugins.attention.flash.prompts import FlashPrompts, Prompts

if TYPE_CHECKING:
    from plugins.attention.triton.launch import Work

    Plan = tuple[Work, list[Prompts] | None]

log = logging.getLogger("plait")

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

        prompts: Literal["auto", "triton", "flash"] = field(
            default="auto",
            metadata={
                "help": "what attends from prompts: triton, or a flash that is installed; auto: "
                "FlashAttention if there is one that was written for the GPU"
            },
        )

    options: Options

    graphable = True
    graphable_prompts = True

    @classmethod
    def rejects(cls, shape: AttentionShape) -> list[str]:
        reasons = []
        emulated = interpreted()
        if shape.device != "cuda" and not emulated:
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
        elif emulated and shape.dtype == torch.bfloat16:
            reasons.append("Triton's interpreter cannot multiply bfloat16")
        cached = shape.cache_dtype or shape.dtype
        if cached not in (*FLOATS, torch.float8_e4m3fn):
            reasons.append(
                f"a cache of {cached} is not one of float32, float16, bfloat16 and float8_e4m3fn"
            )
        elif (
            cached == torch.float8_e4m3fn
            and shape.device == "cuda"
            and torch.cuda.get_device_capability() < (8, 9)
        ):
            reasons.append(f"a cache of {cached} needs a device of compute capability 8.9 or above")
        return reasons

    def __init__(self, shape: AttentionShape, options: Options) -> None:
        super().__init__(shape, options)
        from plugins.attention.triton.launch import Launches

        self._launches = Launches(shape, options.pdl and pdl(torch.device(shape.device)))
        self._flash = self._choose_flash()

    def _choose_flash(self) -> FlashPrompts | None:
        wish = self.options.prompts
        if wish == "triton" or (wish == "auto" and self.shape.device != "cuda"):
            return None
        choice = choose(self.shape, decodes=False)
        if wish == "flash" and choice.best is None:
            raise UserError(f"attention: triton: prompts=flash: {choice}.")
        if choice.best is None:
            return None
        # 2 was written for Ampere: from Hopper on it has the older matrix instructions
        if wish == "auto" and choice.best.number == 2 and _hopper_or_later():
            return None
        log.info("attention: triton: prompts by %s", choice)
        return FlashPrompts(choice.best(self.shape))

    def plan(self, meta: AttentionMetadata) -> None:
        work = self._launches.plan(meta)
        prompts = None
        if self._flash is not None and work.requests > work.decodes and meta.context_lens:
            prompts = self._flash.plan(meta)
        plan = (work, prompts)
        meta.private = {**(meta.private or {}), self: plan}  # layers of other shapes plan too

    def warm(self, cache: KVLayer, limits: Limits) -> None:
        seen = set()
        for count in range(1, min(limits.max_num_seqs, limits.max_num_batched_tokens) + 1):
            how = self._launches.how(count, limits.max_length)
            if how not in seen:
                seen.add(how)
                self._run_nothing(count, cache, decodes=count)
        self._run_nothing(1, cache, decodes=0)

    def _run_nothing(self, count: int, cache: KVLayer, decodes: int) -> None:
        """Launch what so many requests without any context would."""
        device, shape = cache.k.device, self.shape
        counts = torch.zeros(2 * count + 1, dtype=torch.int32, device=device)
        meta = AttentionMetadata(
            query_start=counts[: count + 1],
            context_len=counts[count + 1 :],
            page_table=counts[:count, None],
            slots=torch.full((count,), -1, device=device),
            max_query=1,
            max_context=1,
            decodes=decodes,
        )
        self.plan(meta)
        q, k, v = (
            torch.zeros(count, heads, shape.head_dim, dtype=shape.dtype, device=device)
            for heads in (shape.heads, shape.kv_heads, shape.kv_heads)
        )
        self.forward(q, k, v, cache, meta)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, cache: KVLayer, meta: AttentionMetadata
    ) -> Tensor:
        plan: Plan = meta.private[self]
        work, prompts = plan
        if prompts is not None and work.decodes == 0:
            assert self._flash is not None
            return self._flash.forward(q, k, v, cache, prompts)
        out = q.new_empty(q.shape)
        self.forward_into(q, k, v, cache, meta, out)
        return out

    def forward_into(
        self, q: Tensor, k: Tensor, v: Tensor, cache: KVLayer, meta: AttentionMetadata, out: Tensor
    ) -> None:
        plan: Plan = meta.private[self]
        work, prompts = plan
        n = work.decodes
        if n:
            self._launches.decode(q, cache, meta, work, out)
        if prompts is not None:
            assert self._flash is not None
            self._flash.forward(q[n:], k[n:], v[n:], cache, prompts, out[n:])
        elif work.requests > n:
            self._launches.prompt(q, cache, meta, work, out)

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
        work, _ = meta.private[self]
        self._launches.fused(qkv, norms, rope, positions, cache, meta, work, out)
        return out


def _hopper_or_later() -> bool:
    return torch.cuda.get_device_capability() >= (9, 0)
