"""The small operations in plain torch: any device, and the twin of every faster kernel."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from core.interfaces import Kernels
from core.types import KVLayer


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
        angles = rope.index_select(0, positions)  # [T, 2, D']
        cos, sin = angles[:, None, 0], angles[:, None, 1]  # [T, 1, D']
        if norms is None:
            q, k = _rotate(q, None, 0.0, cos, sin), _rotate(k, None, 0.0, cos, sin)
        else:
            q = _rotate(q, norms[0], norms[2], cos, sin)
            k = _rotate(k, norms[1], norms[2], cos, sin)
        _store(k, cache.k, slots)
        _store(v, cache.v, slots)
        return q, k

    def pack(self, weight: Tensor) -> Tensor | None:
        least = self.options.pack_from
        if (
            least is None
            or weight.numel() < least
            or weight.device.type != "cpu"
            or weight.layout is not torch.strided
            or platform.machine().lower() not in ("x86_64", "amd64")
            or not torch.backends.mkldnn.is_available()
        ):
            return None
        try:
            # The layout is chosen for a number of rows; that for 16 is good for any.
            return torch.ops.mkldnn._reorder_linear_weight(weight, 16)
        except RuntimeError:  # a type that this CPU cannot multiply
            return None

    def linear(self, x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
        if x.shape[0] == 0:
            return x.new_empty(0, packed.shape[0])
        return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


def _rotate(x: Tensor, weight: Tensor | None, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
    """Norm the heads of x [T, N, D] when there is a weight [D], and turn their pairs.

    All in float32, rounded once at the end.
    """
    exact = x.float()
    if weight is not None:
        exact = F.rms_norm(exact, weight.shape, weight.float(), eps)
    half = cos.shape[-1]
    pairs = exact[..., : 2 * half].unflatten(-1, (2, half))  # [T, N, 2, D']
    turned = pairs * cos[..., None, :]
    turned[..., 0, :].addcmul_(pairs[..., 1, :], sin, value=-1)
    turned[..., 1, :].addcmul_(pairs[..., 0, :], sin)
    turned = turned.flatten(-2)
    if 2 * half < x.shape[-1]:
        turned = torch.cat((turned, exact[..., 2 * half :]), -1)
    return turned.to(x.dtype)


def _store(x: Tensor, cache: Tensor, slots: Tensor) -> None:
    """Put x [T, KV, D] into cache [pages, page_size, KV, D] at slots [T]; not where negative."""
    x = x.to(cache.dtype)
    if x.device.type == "cpu":
        if len(slots) and int(slots.min()) < 0:
            kept = slots >= 0
            x, slots = x[kept], slots[kept]
    else:
        x, slots = _without_negatives(x, cache, slots)
    if cache.is_contiguous():
        cache.view(-1, *cache.shape[2:]).index_copy_(0, slots, x)
    else:
        size = cache.shape[1]
        cache[torch.div(slots, size, rounding_mode="floor"), slots % size] = x


def _without_negatives(x: Tensor, cache: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    """The same store without negative slots, of the same size: the device need not be waited for.

    A token that goes nowhere repeats one that goes somewhere; if there is none, all of them
    store what slot 0 holds already.
    """
    stored = slots >= 0
    one = stored.int().argmax()
    repeated = torch.where(stored[one], x[one], cache[0, 0])
    kept = torch.where(stored[:, None, None], x, repeated)
    return kept, torch.where(stored, slots, slots[one].clamp(min=0))
