"""The small operations in plain torch: any device, and the twin of every faster kernel."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from core.interfaces import Kernels
from core.types import KVLayer

KEPT = "64"
"""Products that oneDNN keeps machine code for, about a megabyte each. Each shape of a weight and
each number of rows has its own, and 1024 would be kept in either cache: gigabytes, as prompts have
any length. Making one anew takes 0.2 ms."""


class TorchKernels(Kernels):
    """Plain torch on any device; on x86 CPUs, weights in the order of oneDNN."""

    @dataclass
    class Options:
        pack_from: int | None = field(
            default=1 << 18,
            metadata={
                "help": "on a CPU, smallest weight, in elements, that is put into oneDNN's memory "
                "order, which is read 1.5 to 3 times as fast; null: none"
            },
        )

    options: Options

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, eps)

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        total = x + residual
        return F.rms_norm(total, weight.shape, weight, eps), total

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        return F.silu(gate).mul_(up)

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
        heads = (q.shape[1], k.shape[1])
        exact = torch.cat((q, k), 1).float()  # rounded once, after norm and rotation
        if norms is not None:
            exact = F.rms_norm(exact, exact.shape[-1:], None, norms[2])
            exact[:, : heads[0]] *= norms[0]
            exact[:, heads[0] :] *= norms[1]
        q, k = _turn(exact, rope.index_select(0, positions)).to(q.dtype).split(heads, 1)
        stored = _without_negatives(k, v, cache, slots)
        _store(stored[0], cache.k, stored[2])
        _store(stored[1], cache.v, stored[2])
        return q, k

    def pack(self, weight: Tensor) -> Tensor | None:
        least = self.options.pack_from
        if (
            least is None
            or weight.numel() < least
            or weight.device.type != "cpu"
            or weight.dtype not in (torch.float32, torch.bfloat16, torch.float16)
            or weight.layout is not torch.strided
            or platform.machine().lower() not in ("x86_64", "amd64")
            or not torch.backends.mkldnn.is_available()
        ):
            return None
        for cache in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
            os.environ.setdefault(cache, KEPT)  # read once, at the first product of the process
        try:
            # The layout is chosen for a number of rows; that for 16 is good for any.
            return torch.ops.mkldnn._reorder_linear_weight(weight, 16)
        except RuntimeError:  # a type that this CPU cannot multiply
            return None

    def linear(self, x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
        if x.shape[0] == 0:
            return x.new_empty(0, packed.shape[0])
        return torch.ops.mkldnn._linear_pointwise(x.contiguous(), packed, bias, "none", [], "")


def _turn(x: Tensor, angles: Tensor) -> Tensor:
    """Turn the pairs of every head of x [T, N, D] by angles [T, 2, D']: cosines, then sines."""
    cos, sin = angles[:, None, 0], angles[:, None, 1]  # [T, 1, D']
    half = angles.shape[-1]
    pairs = x[..., : 2 * half].unflatten(-1, (2, half))  # [T, N, 2, D']
    turned = pairs * cos[..., None, :]
    turned[..., 0, :].addcmul_(pairs[..., 1, :], sin, value=-1)
    turned[..., 1, :].addcmul_(pairs[..., 0, :], sin)
    turned = turned.flatten(-2)
    if 2 * half == x.shape[-1]:
        return turned
    return torch.cat((turned, x[..., 2 * half :]), -1)


def _without_negatives(
    k: Tensor, v: Tensor, cache: KVLayer, slots: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """k, v and slots of a store in which nothing has a negative slot."""
    if slots.device.type == "cpu":
        if len(slots) == 0 or int(slots.min()) >= 0:
            return k, v, slots
        kept = slots >= 0
        return k[kept], v[kept], slots[kept]
    return _repeated(k, v, cache, slots)


def _repeated(k: Tensor, v: Tensor, cache: KVLayer, slots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same without waiting for the device, so with as many tokens as before.

    One that goes nowhere repeats one that goes somewhere. If none does, all of them store what
    slot 0 holds already.
    """
    stored = slots >= 0
    one = stored.int().argmax(0, keepdim=True)
    k, v = (
        torch.where(
            stored[:, None, None],
            x,
            torch.where(stored[one], x.index_select(0, one), old[:1, 0].to(x.dtype)),
        )
        for x, old in ((k, cache.k), (v, cache.v))
    )
    return k, v, torch.where(stored, slots, slots[one].clamp(min=0))


def _store(x: Tensor, cache: Tensor, slots: Tensor) -> None:
    """Put x [T, KV, D] into cache [pages, page_size, KV, D] at slots [T]."""
    if cache.is_contiguous():
        cache.view(-1, *cache.shape[2:]).index_copy_(0, slots, x.to(cache.dtype))
    else:
        size = cache.shape[1]
        cache[torch.div(slots, size, rounding_mode="floor"), slots % size] = x.to(cache.dtype)
