"""silu(gate) * up, of the two halves of one projection (Shazeer 2020, SwiGLU)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from core.triton_launch import Launcher, power_of_two

BLOCK = 1024  # numbers of a program: 16 bytes a thread


@triton.jit
def _silu_mul(
    gate_up,  # [T, 2 N], STRIDE elements from row to row
    out,  # [T, N]
    N: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    launch_pdl: tl.constexpr,
):
    """Grid (T, N / BLOCK)."""
    if launch_pdl:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = column < N
    gate = tl.load(gate_up + row * STRIDE + column, mask=here).to(tl.float32)
    up = tl.load(gate_up + row * STRIDE + N + column, mask=here).to(tl.float32)
    tl.store(out + row * N + column, gate * tl.sigmoid(gate) * up, mask=here)


_launch = Launcher(_silu_mul)


def silu_mul(gate_up: Tensor, pdl: bool) -> Tensor:
    """[..., 2 N] -> silu(first half) * second half, [..., N], in float32 and rounded once."""
    size = gate_up.shape[-1] // 2
    rows = gate_up.reshape(-1, 2 * size) if gate_up.dim() != 2 else gate_up
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    out = torch.empty((*gate_up.shape[:-1], size), dtype=gate_up.dtype, device=gate_up.device)
    if out.numel():
        block = min(BLOCK, power_of_two(size))
        _launch(
            (len(rows), -(-size // block), 1),
            (rows, out),
            (),
            (size, rows.stride(0), block),
            warps=max(1, block // 256),
            pdl=pdl,
        )
    return out
