"""Kernel sets with one fault each."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from core.registry import kernels
from core.types import KVLayer
from plugins.kernels.torch import TorchKernels


@kernels.register("no-eps")
class NoEps(TorchKernels):
    def rms_norm(self, x, weight, eps):
        return super().rms_norm(x, weight, 0.0)


@kernels.register("statistics-in-half")
class StatisticsInHalf(TorchKernels):
    def rms_norm(self, x, weight, eps):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


@kernels.register("norm-in-place")
class NormInPlace(TorchKernels):
    def rms_norm(self, x, weight, eps):
        return x.copy_(super().rms_norm(x, weight, eps))


@kernels.register("sum-lost")
class SumLost(TorchKernels):
    def add_rms_norm(self, x, residual, weight, eps):
        return super().add_rms_norm(x, residual, weight, eps)[0], residual


@kernels.register("one-memory-for-both")
class OneMemoryForBoth(TorchKernels):
    def add_rms_norm(self, x, residual, weight, eps):
        normed, total = super().add_rms_norm(x, residual, weight, eps)
        return normed, normed.copy_(total)


@kernels.register("gates-the-wrong-half")
class GatesTheWrongHalf(TorchKernels):
    def silu_mul(self, gate_up):
        up, gate = gate_up.chunk(2, -1)
        return F.silu(gate) * up


@kernels.register("neighbours-paired")
class NeighboursPaired(TorchKernels):
    """Rotates entries 0 and 1, 2 and 3, ... in place of halves."""

    def rope_store(self, q, k, v, norms, rope, positions, cache, slots):
        half = rope.shape[-1]
        order = torch.arange(2 * half).view(half, 2).T.flatten()
        order = torch.cat((order, torch.arange(2 * half, q.shape[-1])))
        mixed = [x[..., order] for x in (q, k)]
        weights = norms and (norms[0][order], norms[1][order], norms[2])
        q, k = super().rope_store(*mixed, v, weights, rope, positions, cache, slots)
        back = order.argsort()
        kept = slots >= 0
        size = cache.k.shape[1]
        cache.k[slots[kept] // size, slots[kept] % size] = k[kept][..., back].to(cache.k.dtype)
        return q[..., back], k[..., back]


@kernels.register("norms-swapped")
class NormsSwapped(TorchKernels):
    def rope_store(self, q, k, v, norms, *rest):
        return super().rope_store(q, k, v, norms and (norms[1], norms[0], norms[2]), *rest)


@kernels.register("negative-slots-wrap")
class NegativeSlotsWrap(TorchKernels):
    def rope_store(self, q, k, v, norms, rope, positions, cache, slots):
        wrapped = slots % (cache.k.shape[0] * cache.k.shape[1])
        return super().rope_store(q, k, v, norms, rope, positions, cache, wrapped)


@kernels.register("keys-stored-unturned")
class KeysStoredUnturned(TorchKernels):
    def rope_store(self, q, k, v, norms, rope, positions, cache, slots):
        turned = super().rope_store(q, k, v, norms, rope, positions, cache, slots)
        kept = slots >= 0
        size = cache.k.shape[1]
        cache.k[slots[kept] // size, slots[kept] % size] = k[kept].to(cache.k.dtype)
        return turned


@kernels.register("stores-in-a-copy")
class StoresInACopy(TorchKernels):
    """Right while the cache's memory is in the order of its dims."""

    def rope_store(self, q, k, v, norms, rope, positions, cache, slots):
        whole = KVLayer(cache.k.contiguous(), cache.v.contiguous())
        return super().rope_store(q, k, v, norms, rope, positions, whole, slots)


@kernels.register("turns-the-projection")
class TurnsTheProjection(TorchKernels):
    def rope_store(self, q, k, v, *rest):
        turned = super().rope_store(q, k, v, *rest)
        return q.copy_(turned[0]), turned[1]
