"""The carried norm: a norm whose scale of the rows is left to the product behind it.

RMSNorm is a factor for each column, its weight, and a factor for each row, which commutes with a
matrix product. So whoever writes the sum that is normed also writes it times the weight, and sums
of squares of its part of each row. The product takes the first and scales its result by the second:
no program norms a row again, and no kernel is there for the norm alone.

Where a norm apart rounds x / rms(x) * weight, this rounds x * weight: by as much, relatively. That
number may be large, so this is not for float16.
"""

from __future__ import annotations

from collections.abc import Callable

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from core.fusing import Waiting


class Carried(Waiting):
    """x / rms(x) * weight, of which x * weight and parts of rms(x) are there."""

    def __init__(
        self, x: Tensor, squares: Tensor, eps: float, normed: Callable[[Carried], Tensor]
    ) -> None:
        """x: x * weight [T, N]; squares: sums over some x^2, float32 [T, parts]."""
        super().__init__(x, x.shape[1])
        self.x, self.squares, self.eps, self._normed = x, squares, eps, normed

    def compute(self) -> Tensor:
        return self._normed(self)


@triton.jit(do_not_specialize=["eps", "parts"])
def scaled(
    x,  # [T, N]
    squares,  # [T, parts] float32
    out,  # [T, N]
    eps,
    parts,
    N: tl.constexpr,
    BLOCK: tl.constexpr,  # power of two, at least N
    PARTS: tl.constexpr,  # power of two, at least `parts`
    launch_pdl: tl.constexpr,
):
    """Grid (T,)."""
    if launch_pdl:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    part = tl.arange(0, PARTS)
    value = tl.load(x + row * N + column, mask=column < N, other=0.0).to(tl.float32)
    squared = tl.load(squares + row * parts + part, mask=part < parts, other=0.0)
    scale = tl.rsqrt(tl.sum(squared, 0) / N + eps)
    tl.store(out + row * N + column, value * scale, mask=column < N)
