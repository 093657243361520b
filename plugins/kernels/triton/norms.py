"""RMSNorm, alone and with the residual sum before it (Zhang and Sennrich 2019)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from core.triton_launch import Launcher, power_of_two

WIDEST = 1 << 16  # a program holds a whole row in its registers
MANY = 512  # rows from which on bandwidth counts, and latency no more


@triton.jit(do_not_specialize=["eps"])
def _rms_norm(
    x,  # [rows, N]
    residual,  # [rows, N]; read and written if ADD
    weight,  # [N]
    out,  # [rows, N], without gaps; may be x
    eps,
    N: tl.constexpr,
    X_STRIDE: tl.constexpr,  # elements from row to row
    RESIDUAL_STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,  # power of two, at least N
    ADD: tl.constexpr,
    launch_pdl: tl.constexpr,
):
    """Grid (rows,). A program reads its row once and keeps it in registers."""
    if launch_pdl:
        gdc_launch_dependents()
    column = tl.arange(0, BLOCK)
    here = column < N
    gain = tl.load(weight + column, mask=here, other=0.0).to(tl.float32)
    if launch_pdl:
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    value = tl.load(x + row * X_STRIDE + column, mask=here, other=0.0).to(tl.float32)
    if ADD:
        at = residual + row * RESIDUAL_STRIDE + column
        value += tl.load(at, mask=here, other=0.0).to(tl.float32)
        # What is normed is the sum as the next layer will read it: rounded.
        rounded = value.to(x.dtype.element_ty)
        tl.store(at, rounded, mask=here)
        value = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / N + eps)
    tl.store(out + row * N + column, value * scale * gain, mask=here)


_launch = Launcher(_rms_norm)


def rms_norm(x: Tensor, weight: Tensor, eps: float, pdl: bool) -> Tensor:
    """x [..., N] -> x / rms(x) * weight, computed in float32, rounded once."""
    rows = _as_rows(x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _norm(rows, rows, weight, out, eps, add=False, pdl=pdl)
    return out


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, pdl: bool
) -> tuple[Tensor, Tensor]:
    """(norm of x + residual, x + residual), both [..., N], in the memory of x and of residual."""
    if not x.is_contiguous() or not residual.is_contiguous() or residual is x:
        x, residual = x.contiguous(), residual.clone(memory_format=torch.contiguous_format)
    _norm(_as_rows(x), _as_rows(residual), weight, x, eps, add=True, pdl=pdl)
    return x, residual


def _norm(
    x: Tensor, residual: Tensor, weight: Tensor, out: Tensor, eps: float, *, add: bool, pdl: bool
) -> None:
    rows, size = x.shape
    assert size <= WIDEST, f"RMSNorm over {size} numbers"
    if rows == 0:
        return
    block = power_of_two(size)
    # Few rows: 16 bytes a thread, for speed. Many: more bytes a thread, and sums by few warps.
    warps = min(max(block // (256 if rows < MANY else 1024), 1), 16)
    _launch(
        (rows, 1, 1),
        (x, residual, weight, out),
        (eps,),
        (size, x.stride(0), residual.stride(0), block, add),
        warps=warps,
        pdl=pdl,
    )


def _as_rows(x: Tensor) -> Tensor:
    """[..., N] -> [rows, N] with neighbours in memory, a view where that is possible."""
    x = x.reshape(-1, x.shape[-1]) if x.dim() != 2 else x
    return x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous()
