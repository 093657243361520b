"""A norm that is carried: a norm whose scale of the rows is left to the product behind it.

RMSNorm is a factor for each column, its weight, and a factor for each row, which commutes with a
matrix product. So whoever writes the sum that is normed also writes it times the weight, and sums
of squares of its part of each row. The product takes the first and scales its result by the second:
no program norms a row again, and no kernel is there for the norm alone.

Where a norm apart rounds x / rms(x) * weight, this rounds x * weight: by as much, relatively. That
number may be large, so this is not for float16.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

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
