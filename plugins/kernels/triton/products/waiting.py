"""Products that wait for what follows them, and the operations that take them in."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from core.fusing import Waiting, value_of
from core.triton_launch import interpreted, pdl
from plugins.kernels.triton.products.carried import Carried
from plugins.kernels.triton.products.launch import Products, Work
from plugins.kernels.triton.products.recipes import (
    MOST_TOKENS,
    Bulk,
    Recipe,
    Recipes,
    Shape,
    by_rule,
)


class Product(Waiting):
    """x weight^T + bias, not yet multiplied."""

    def __init__(
        self, fused: FusedLayers, x: Tensor | Carried, weight: Tensor, bias: Tensor | None
    ) -> None:
        super().__init__(x, len(weight))  # type: ignore[arg-type]
        self.fused, self.x, self.weight, self.bias = fused, x, weight, bias

    def compute(self) -> Tensor:
        return self.fused.product(self.x, self.weight, self.bias)


class FusedLayers:
    """What stands between a kernel set's operations and the launches of products."""

    def __init__(self, recipes: Recipes | None = None, pdl: bool | None = None) -> None:
        """`pdl`: whether kernels may overlap; None: where the device can."""
        self.recipes = recipes or Recipes()
        self._pdl = pdl
        self._products: Products | None = None

    def waits(self, x: Tensor | Waiting, weight: Tensor, bias: Tensor | None) -> Product | None:
        """A product that what follows may take in; None where there is nothing to gain."""
        if not (self._fits(x, weight) and self.recipes.any(*weight.shape, len(x))):
            return None
        return Product(self, _input(x), weight, bias)

    def product(self, x: Tensor | Waiting, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The product itself, [T, N]."""
        work = self._work(_input(x), weight, bias)
        how = self._how(work)
        if how is None:
            return F.linear(value_of(x), weight, bias)
        return self._launches(work.x)(work, how)

    def activated(self, product: Product) -> Tensor | None:
        """silu(first half) * second half of it, [T, N / 2]; None if it is better done apart."""
        work = self._work(product.x, product.weight, product.bias, gated=True)
        how = self._how(work)
        return None if how is None else self._launches(work.x)(work, how)

    def added(
        self, product: Product, residual: Tensor, gain: Tensor, eps: float
    ) -> tuple[Carried, Tensor] | None:
        """(the norm of the sum with the residual, the sum); None if it is better done apart.

        The sum is in the residual's memory, if that is contiguous.
        """
        if residual.dtype == torch.float16:  # the sum times the gain may be beyond it
            return None
        if not residual.is_contiguous():
            residual = residual.contiguous()
        work = self._work(product.x, product.weight, product.bias, residual=residual, gain=gain)
        how = self._how(work)
        if how is None:
            return None
        launches = self._launches(residual)
        total, x, squares = launches.carry(work, how)
        return Carried(x, squares, eps, launches.normed), total

    def carries(self, x: Tensor) -> bool:
        """Whether products are likely to take in a norm of x [T, N] that is carried: a square one
        stands for all."""
        tokens, size = x.shape
        return (
            0 < tokens <= MOST_TOKENS
            and x.dtype != torch.float16
            and _served(x.device, x.dtype)
            and self.recipes.of(Shape(size, size), tokens) is not None
        )

    def carried(self, x: Tensor, squares: Tensor, eps: float) -> Carried:
        """The norm of which a kernel has made x * weight [T, N] and sums of squares [T, parts]."""
        return Carried(x, squares, eps, self._launches(x).normed)

    def _work(
        self, x: Tensor | Carried, weight: Tensor, bias: Tensor | None, **more: object
    ) -> Work:
        if isinstance(x, Carried):
            return Work(x.x, weight, bias, x, **more)  # type: ignore[arg-type]
        return Work(x, weight, bias, **more)  # type: ignore[arg-type]

    def _how(self, work: Work) -> Recipe:
        if not self._fits(work.x, work.weight):
            return None
        if work.bias is not None and not work.bias.is_contiguous():
            return None
        how = self.recipes.of(work.shape, len(work.x))
        if isinstance(how, Bulk) and not work.in_tiles:
            return by_rule(work.shape, len(work.x))
        return how

    def _fits(self, x: Tensor | Waiting, weight: Tensor) -> bool:
        return (
            len(x.shape) == 2
            and 0 < len(x) <= MOST_TOKENS
            and x.dtype == weight.dtype
            and weight.stride(1) == 1
            and _served(x.device, x.dtype)
        )

    def _launches(self, x: Tensor) -> Products:
        if self._products is None:
            self._products = Products(pdl(x.device) if self._pdl is None else self._pdl)
        return self._products


def _input(x: Tensor | Waiting) -> Tensor | Carried:
    """What a product is made of: a norm that waits is taken in, all else is computed."""
    return x if isinstance(x, Carried) else value_of(x)


@cache
def _served(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the recipes are for this device and type."""
    if interpreted():
        return dtype != torch.bfloat16  # which the interpreter cannot multiply
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return False
    return torch.cuda.get_device_capability(device) == (9, 0)
