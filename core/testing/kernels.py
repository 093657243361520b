"""The small operations in float64, and the queries, keys and caches that they work on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from core.interfaces import Kernels
from core.testing.numbers import assert_close, bits
from core.types import KVLayer

EPS = 1e-5


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight, [..., N] in float64."""
    x = x.double()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.double()


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(first half) * second half, [T, 2 N] -> [T, N] in float64."""
    gate, up = gate_up.double().chunk(2, -1)
    return gate * torch.sigmoid(gate) * up


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Turn the first 2 D' entries of x [T, N, D], halves paired; angles [T, 2, D'], in float64."""
    half = angles.shape[-1]
    cos, sin = angles.double()[:, None, 0], angles.double()[:, None, 1]
    a, b, rest = x.double().split((half, half, x.shape[-1] - 2 * half), -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)


@dataclass
class HeadsCase:
    """q, k and v as views into one projection, a rotary table, and a cache full of NaN."""

    tokens: int = 9
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    rotated: int | None = None  # entries of a head that turn; None: all
    norms: bool = True
    dtype: torch.dtype = torch.float32
    cache_dtype: torch.dtype | None = None
    device: str = "cpu"
    layout: str = "tokens"
    joint: bool = False  # keys and values are slices of one tensor
    page_size: int = 16
    nowhere: tuple[int, ...] = ()  # tokens with a negative slot
    scale: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        made = torch.Generator().manual_seed(self.seed)
        size, count = self.head_dim, self.heads + 2 * self.kv_heads

        def put(x: Tensor) -> Tensor:
            return x.to(self.device)

        packed = self.scale * torch.randn(self.tokens, count, size, generator=made)
        self.packed = put(packed.to(self.dtype))
        self.q, self.k, self.v = self.packed.split((self.heads, self.kv_heads, self.kv_heads), 1)
        weights = torch.rand(2, size, generator=made) + 0.5
        self.weights = put(weights.to(self.dtype))
        speeds = torch.rand((self.rotated or size) // 2, generator=made)
        angles = torch.arange(200.0)[:, None] * speeds
        self.rope = put(torch.stack([angles.cos(), angles.sin()], 1))
        self.positions = put(torch.randint(0, 200, (self.tokens,), generator=made))
        self.pages = -(-self.tokens // self.page_size) + 2
        slots = torch.randperm(self.pages * self.page_size, generator=made)[: self.tokens]
        for number, token in enumerate(self.nowhere):
            slots[token] = -1 - number
        self.slots = put(slots)

    @cached_property
    def cache(self) -> KVLayer:
        """[pages, page_size, KV, D] twice, in the memory order of `layout`."""
        size = [self.pages, self.page_size, self.kv_heads, self.head_dim]
        if self.layout == "heads":
            size = [size[0], size[2], size[1], size[3]]
        kind = self.cache_dtype or self.dtype
        made = torch.full((2, *size), torch.nan, dtype=kind, device=self.device)
        if self.joint:
            made = made.transpose(0, 1).contiguous().transpose(0, 1)
        k, v = (x.transpose(1, 2) if self.layout == "heads" else x for x in made)
        return KVLayer(k, v)

    def expected(self) -> tuple[Tensor, Tensor]:
        """q and k, normed and turned, in float64."""
        q, k = self.q, self.k
        if self.norms:
            q, k = (rms_norm(x, w, EPS) for x, w in zip((q, k), self.weights, strict=True))
        angles = self.rope[self.positions]
        return rotate(q, angles), rotate(k, angles)

    @torch.inference_mode()
    def check(self, kernels: Kernels) -> None:
        """`rope_store` gives what `expected` says, stores it, and touches nothing else."""
        norms = (self.weights[0], self.weights[1], EPS) if self.norms else None
        given = {
            "the projection": self.packed,
            "the norms' weights": self.weights,
            "the rotary table": self.rope,
            "positions": self.positions,
            "slots": self.slots,
        }
        before = {name: bits(x).clone() for name, x in given.items()}
        wanted = self.expected()
        q, k = kernels.rope_store(
            self.q, self.k, self.v, norms, self.rope, self.positions, self.cache, self.slots
        )
        for name, x in given.items():
            assert torch.equal(bits(x), before[name]), f"rope_store has changed {name}"
        assert_close(q, wanted[0], self.dtype, "q")
        assert_close(k, wanted[1], self.dtype, "k")
        self._check_stored("keys", self.cache.k, k)
        self._check_stored("values", self.cache.v, self.v)

    def _check_stored(self, what: str, cache: Tensor, x: Tensor) -> None:
        wanted = torch.full_like(cache, torch.nan)
        kept = self.slots >= 0
        slots = self.slots[kept]
        wanted[slots // self.page_size, slots % self.page_size] = x[kept].to(cache.dtype)
        same = bits(cache) == bits(wanted)
        # one kernel may round what it returns and what it stores on different ways
        near = torch.isclose(cache.float(), wanted.float(), rtol=1e-2, atol=1e-3)
        unlike = ~(same | (near if cache.dtype != x.dtype else torch.zeros_like(near)))
        assert not unlike.any(), f"{what} in the cache are wrong at {int(unlike.sum())} places"
