"""Products with all that may be in their kernels, and layers of them, beside float64."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from core.testing.kernels import EPS, rms_norm, silu_mul
from core.testing.numbers import assert_close

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HALF = torch.float32 if INTERPRETED else torch.bfloat16  # the interpreter cannot multiply bfloat16
ENDS = ("plain", "gated", "added")


@dataclass
class ProductCase:
    """x [tokens, inputs] by a weight of `outputs` rows, twice as many when it is gated."""

    tokens: int
    outputs: int
    inputs: int
    end: str = "plain"
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    bias: bool = False
    normed: int = 0  # x is carried, with so many parts of squares; 0: it is not
    strided: bool = False  # rows of x and of the weight lie apart
    seed: int = 0

    def __post_init__(self) -> None:
        self.made = torch.Generator().manual_seed(self.seed)
        rows = self.outputs * (2 if self.end == "gated" else 1)
        self.plain_x = self._random(self.tokens, self.inputs)
        self.weight = self._random(rows, self.inputs, scale=self.inputs**-0.5)
        self.b = self._random(rows) if self.bias else None
        self.before = self._random(self.inputs).abs() + 0.5  # weights of the norms
        self.after = self._random(self.outputs).abs() + 0.5
        self.residual = self._random(self.tokens, self.outputs)
        self.x = self.plain_x
        if self.normed:
            self.x = (self.plain_x.float() * self.before.float()).to(self.dtype)

    def _random(self, *size: int, scale: float = 1.0) -> Tensor:
        wide = size[-1] + (24 if self.strided and len(size) == 2 else 0)
        x = torch.full((*size[:-1], wide), torch.nan, dtype=self.dtype)
        x[..., : size[-1]] = scale * torch.randn(size, generator=self.made)
        return x.to(self.device)[..., : size[-1]]

    @property
    def squares(self) -> Tensor:
        """[tokens, parts] float32."""
        columns = torch.arange(self.inputs, device=self.device) * self.normed // self.inputs
        parts = torch.zeros(self.tokens, self.normed, device=self.device)
        return parts.index_add_(1, columns, self.plain_x.float().square())

    def exact(self) -> Tensor:
        x = self.x.double()
        if self.normed:
            mean = self.plain_x.double().square().mean(-1, keepdim=True)
            x = x * torch.rsqrt(mean + EPS)
        y = x @ self.weight.double().T
        if self.b is not None:
            y += self.b.double()
        if self.end == "gated":
            return silu_mul(y)
        return y + self.residual.double() if self.end == "added" else y

    def run(self, how: Any, pdl: bool = False) -> tuple[Tensor, Any]:
        """-> the product, and the norm that it carries."""
        from plugins.kernels.triton.products.carried import Carried
        from plugins.kernels.triton.products.launch import Products, Work

        products = Products(pdl)
        norm = Carried(self.x, self.squares, EPS, products.normed) if self.normed else None
        added = self.end == "added"
        residual = self.residual.clone(memory_format=torch.contiguous_format) if added else None
        work = Work(self.x, self.weight, self.b, norm, self.end == "gated", residual,
                    self.after if added else None)  # fmt: skip
        out, x, squares = products.carry(work, how)
        return out, Carried(x, squares, EPS, products.normed) if added else None

    def check(self, how: Any, pdl: bool = False) -> None:
        exact = self.exact()
        found, carried = self.run(how, pdl)
        assert_close(found, exact, self.dtype, f"{how}")
        if carried is not None:
            assert_close(carried.value(), rms_norm(found, self.after, EPS), self.dtype, "the norm")
            sums = found.double().square().sum(1)
            torch.testing.assert_close(carried.squares.sum(1).double(), sums, rtol=1e-5, atol=1e-6)


def normal(*size: int, device: str, seed: int = 0) -> Tensor:
    made = torch.Generator().manual_seed(seed + sum(size))
    return torch.randn(*size, generator=made).to(HALF).to(device)


class Layer:
    """The products of a layer without its attention, called as modules call them."""

    def __init__(self, device: str, size: int = 64, inner: int = 96) -> None:
        def weight(*shape: int, seed: int) -> Tensor:
            return normal(*shape, device=device, seed=seed) / shape[1] ** 0.5

        self.o = weight(size, inner, seed=1)
        self.gate_up = weight(2 * inner, size, seed=2)
        self.down = weight(size, inner, seed=3)
        self.qkv = weight(inner, size, seed=4)
        self.gains = [normal(size, device=device, seed=s).abs() + 0.5 for s in (5, 6)]

    def run(self, ours: Any, x: Tensor, residual: Tensor, wait: bool, layers: int = 1) -> Any:
        """x [T, inner] as attention leaves it -> (next projection, residual)."""
        for _ in range(layers):
            x = ours.product(x, self.o, None, wait=wait)
            x, residual = ours.add_rms_norm(x, residual, self.gains[0], EPS)
            x = ours.silu_mul(ours.product(x, self.gate_up, None, wait=wait))
            x = ours.product(x, self.down, None, wait=wait)
            x, residual = ours.add_rms_norm(x, residual, self.gains[1], EPS)
            x = ours.product(x, self.qkv, None, wait=False)
        return x, residual

    def exact(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        residual = residual.double() + x.double() @ self.o.double().T
        x = silu_mul(rms_norm(residual, self.gains[0], EPS) @ self.gate_up.double().T)
        residual = residual + x @ self.down.double().T
        return rms_norm(residual, self.gains[1], EPS) @ self.qkv.double().T, residual
