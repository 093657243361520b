"""The kernel set `triton`: fused small operations on CUDA GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from core.interfaces import Kernels
from core.triton_launch import interpreted, pdl
from core.types import KVLayer
from plugins.kernels.triton import activation, draw, floors, inputs, norms, rotary

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class TritonKernels(Kernels):
    """Each operation in one launch, which overlaps with the end of the one before (Hopper)."""

    @dataclass
    class Options: ...

    @classmethod
    def rejects(cls, dtype: Any, device: str) -> list[str]:
        reasons = []
        if device != "cuda" and not interpreted():
            reasons.append(f"it runs on CUDA GPUs, not on {device!r}; kernels: torch runs anywhere")
        if dtype not in DTYPES:
            reasons.append(f"it computes in float32, bfloat16 and float16, not in {dtype}")
        return reasons

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return norms.rms_norm(x, weight, eps, _pdl(x.device))

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Overwrites both inputs where they are contiguous."""
        return norms.add_rms_norm(x, residual, weight, eps, _pdl(x.device))

    def silu_mul(self, gate_up: Tensor) -> Tensor:
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
