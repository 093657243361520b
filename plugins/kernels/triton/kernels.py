"""The kernel set `triton`: fused small operations on CUDA GPUs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from core.fusing import value_of
from core.interfaces import Kernels
from core.parallel.groups import PartialSum
from core.parallel.peers import PeerMemory
from core.triton_launch import interpreted, pdl
from core.types import KVLayer
from plugins.kernels.triton import activation, draw, floors, inputs, norms, rotary
from plugins.kernels.triton.products.waiting import FusedLayers, Product
from plugins.kernels.triton.sums.launch import Sums, memory

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class TritonKernels(Kernels):
    """Each operation in one launch, which overlaps with the end of the one before (Hopper)."""

    @dataclass
    class Options:
        products: bool = field(
            default=True,
            metadata={
                "help": "on Hopper, in captured steps of up to 256 tokens, multiply by kernels of "
                "this project where those are faster, with norm, residual and activation in them; "
                "false: torch multiplies"
            },
        )
        sums: bool = field(
            default=True,
            metadata={
                "help": "with several ranks, sum small tensors by kernels of this project, which "
                "write into other GPUs' memory; false: NCCL sums"
            },
        )

    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.fused = FusedLayers()

    @classmethod
    def rejects(cls, dtype: Any, device: str) -> list[str]:
        reasons = []
        if device != "cuda" and not interpreted():
            reasons.append(f"it runs on CUDA GPUs, not on {device!r}; kernels: torch runs anywhere")
        elif device == "cuda" and torch.cuda.get_device_capability() < (8, 0):
            reasons.append("it needs a device of compute capability 8.0 (Ampere) or above")
        if dtype not in DTYPES:
            reasons.append(f"it computes in float32, bfloat16 and float16, not in {dtype}")
        return reasons

    # core.fusing.FusedProducts: what a product lets wait is taken in by what follows it

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None, *, wait: bool) -> Tensor:
        if not self.options.products:
            return F.linear(value_of(x), weight, bias)
        waiting = self.fused.waits(x, weight, bias) if wait else None
        if waiting is not None:
            return waiting  # type: ignore[return-value]
        return self.fused.product(x, weight, bias)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        x = value_of(x)
        return norms.rms_norm(x, weight, eps, _pdl(x.device))

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Overwrites both inputs where they are contiguous."""
        if isinstance(x, Product):
            added = self.fused.added(x, value_of(residual), weight, eps)
            if added is not None:
                return added  # type: ignore[return-value]
        if isinstance(x, PartialSum) and isinstance(x.comm.sums, Sums):
            summed = self._summed(x.comm.sums, x.part, value_of(residual), weight, eps)
            if summed is not None:
                return summed
        x, residual = value_of(x), value_of(residual)
        return norms.add_rms_norm(x, residual, weight, eps, _pdl(x.device))

    def _summed(
        self, sums: Sums, part: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor] | None:
        carry = self.options.products and self.fused.carries(part)
        found = sums.added(part, residual, weight, eps, carry)
        if found is None:
            return None
        out, total, squares = found
        return (self.fused.carried(out, squares, eps) if carry else out), total  # type: ignore

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        if isinstance(gate_up, Product):
            activated = self.fused.activated(gate_up)
            if activated is not None:
                return activated
        gate_up = value_of(gate_up)
        return activation.silu_mul(gate_up, _pdl(gate_up.device))

    def rope_store(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        norms: tuple[Tensor, Tensor, float] | None,
        rope: Tensor,
        positions: Tensor,
        cache: KVLayer,
        slots: Tensor,
    ) -> tuple[Tensor, Tensor]:
        return rotary.rope_store(q, k, v, norms, rope, positions, cache, slots, _pdl(q.device))

    # core.parallel.peers.PeerKernels

    def peer_bytes(self, ranks: int) -> int:
        return memory(ranks) if self.options.sums else 0

    def peer_sums(self, peers: PeerMemory) -> Sums:
        return Sums(peers, _pdl(peers.device))

    # core.sampling.kernels.SamplingKernels

    def draw(
        self,
        logits: Tensor,
        columns: Tensor,
        index: Tensor,
        positions: Tensor,
        floor: Tensor | None,
    ) -> Tensor:
        return draw.best(logits, columns, index, positions, floor, _pdl(logits.device))[1]

    # core.sampling.shards.ShardKernels

    def best_of_shard(
        self,
        logits: Tensor,
        columns: Tensor,
        index: Tensor,
        positions: Tensor,
        floor: Tensor | None,
        first: int,
        size: int,
    ) -> Tensor:
        return draw.best_of_shard(
            logits, columns, index, positions, floor, first, size, _pdl(logits.device)
        )

    def best_of_all(self, found: Tensor) -> tuple[Tensor, Tensor]:
        return draw.best_of_all(found, _pdl(found.device))

    def floors(self, logits: Tensor, columns: Tensor, index: Tensor) -> Tensor:
        return floors.floors(logits, columns, index, _pdl(logits.device))

    # core.worker.batching.InputKernels

    def derive(
        self,
        rows: Tensor,
        starts: Tensor,
        query_start: Tensor,
        history: Tensor,
        page_table: Tensor,
        page_size: int,
        total: int,
        longest: int,
        width: int,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return inputs.derive(
            rows,
            starts,
            query_start,
            history,
            page_table,
            page_size,
            total,
            longest,
            width,
            _pdl(rows.device),
        )


_pdl = cache(pdl)
