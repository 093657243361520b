"""What models are made of beside embeddings: norms, projections, rotation, paged attention.

Plain modules with sizes and nothing else. `bind` gives them what one worker has: kernels, an
attention backend for each shape, and the cache. Everything may be built on the meta device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from core.fusing import FusedProducts, Fusing, value_of
from core.types import AttentionShape, KVLayer

if TYPE_CHECKING:
    from core.interfaces import AttentionBackend, Kernels
    from core.rope import Rope
    from core.types import AttentionMetadata, Batch, Limits

    Norms = tuple[Tensor, Tensor, float]  # q weight [D], k weight [D], eps


@runtime_checkable
class FusedAttention(Protocol):
    """What a backend may offer beside `forward`: all that lies between two projections."""

    def fuses(self, meta: AttentionMetadata) -> bool:
        """Whether it wants `forward_fused` for this step; `rope_store` and `forward` otherwise."""

    def forward_fused(
        self,
        qkv: Tensor,
        norms: Norms | None,
        rope: Tensor,
        positions: Tensor,
        cache: KVLayer,
        meta: AttentionMetadata,
    ) -> Tensor:
        """qkv [T, (H + 2 KV) D] -> [T, H D]: `Kernels.rope_store`, then attention, in one."""


@runtime_checkable
class PackedProducts(Protocol):
    """What kernels may offer for matrix products: a memory order of their own for weights."""

    def pack(self, weight: Tensor) -> Tensor | None:
        """A loaded weight [out, in] in the order that `linear` reads best; None: leave it."""

    def linear(self, x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
        """x [T, in] -> x weight^T + bias, [T, out]."""


class Worker(Protocol):
    """What a layer must know of the worker to say which attention it needs."""

    page_size: int
    dtype: torch.dtype
    cache_dtype: torch.dtype
    device: torch.device


class RMSNorm(nn.Module):
    """x / rms(x) * weight (Zhang and Sennrich 2019); with `residual`, of the sum of both."""

    kernels: Kernels

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        """[T, size] -> [T, size]; with a residual -> (norm of the sum, the sum)."""
        if residual is None:
            return self.kernels.rms_norm(x, self.weight, self.eps)
        return self.kernels.add_rms_norm(x, residual, self.weight, self.eps)


class Linear(nn.Linear):
    """A projection whose weight the kernels may keep in a memory order of their own.

    After `bind`, `weight` is then opaque to everything but `to_dense()` and the kernels. A weight
    that another module shares stays as it is, and the projection keeps a packed copy.

    Where kernels fuse products, and `Fusing` is on, what it returns may be computed later, with
    what follows. Not so in subclasses: a collective, say, needs the product itself.
    """

    _packed: Tensor | None = None
    _kernels: PackedProducts
    _products: FusedProducts
    _fusing = Fusing()

    def reset_parameters(self) -> None:
        """Weights are read, or drawn by a source; drawing them here as well would take longer."""

    def pack(self, kernels: PackedProducts, shared: bool) -> None:
        packed = kernels.pack(self.weight.detach())
        if packed is None:
            return
        self._packed, self._kernels = packed, kernels
        if not shared:
            self.weight = nn.Parameter(packed, requires_grad=False)

    def fuse(self, kernels: FusedProducts, fusing: Fusing) -> None:
        self._products, self._fusing = kernels, fusing

    def forward(self, input: Tensor) -> Tensor:
        if self._fusing.on and self._packed is None:
            wait = type(self) is Linear
            return self._products.product(input, self.weight, self.bias, wait=wait)
        if self._packed is None:
            return F.linear(input, self.weight, self.bias)
        return self._kernels.linear(input, self._packed, self.bias)


class GatedActivation(nn.Module):
    """silu(gate) * up, of the two halves of one projection (Shazeer 2020, SwiGLU)."""

    kernels: Kernels

    def forward(self, gate_up: Tensor) -> Tensor:
        """[T, 2 N] -> [T, N]."""
        return self.kernels.silu_mul(gate_up)


class Rotary(nn.Module):
    """The table of rotary angles that all layers of a model share; `bind` fills it."""

    table: Tensor | None

    def __init__(self, rope: Rope) -> None:
        super().__init__()
        self.rope = rope
        self.register_buffer("table", None, persistent=False)

    def forward(self) -> Tensor:
        """Cosines and sines, float32 [positions, 2, D / 2]."""
        assert self.table is not None, "bind() fills the table"
        return self.table


class Attention(nn.Module):
    """Attention over the paged cache, with the norm and rotation of queries and keys before it."""

    kernels: Kernels
    backend: AttentionBackend
    fused: FusedAttention | None
    cache: KVLayer

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        head_dim: int,
        scale: float,
        *,
        window: int | None = None,
        layer: int,
    ) -> None:
        """`window`: tokens that a token sees, itself included; `layer`: its place in the cache."""
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.scale, self.window, self.layer = scale, window, layer

    def shape(self, worker: Worker) -> AttentionShape:
        """What a backend is asked to do for this layer."""
        return AttentionShape(
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            scale=self.scale,
            page_size=worker.page_size,
            window=self.window,
            dtype=worker.dtype,
            cache_dtype=worker.cache_dtype,
            device=worker.device.type,
        )

    def forward(
        self,
        qkv: Tensor,
        q_norm: RMSNorm | None,
        k_norm: RMSNorm | None,
        rope: Tensor,
        batch: Batch,
    ) -> Tensor:
        """qkv [T, (H + 2 KV) D] -> [T, H D]. Keys and values of the T tokens are stored first."""
        norms = None
        if q_norm is not None and k_norm is not None:
            norms = (q_norm.weight, k_norm.weight, q_norm.eps)
        meta, qkv = batch.attention, value_of(qkv)
        if batch.apart is None and self.fused is not None and self.fused.fuses(meta):
            return self.fused.forward_fused(qkv, norms, rope, batch.positions, self.cache, meta)
        heads = qkv.view(len(qkv), -1, self.head_dim)  # [T, H + 2 KV, D]
        q, k, v = heads.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        q, k = self.kernels.rope_store(
            q, k, v, norms, rope, batch.positions, self.cache, meta.slots
        )
        if batch.apart is not None:
            return batch.apart(self, q, k, v).flatten(1)
        return self.backend.forward(q, k, v, self.cache, meta).flatten(1)


def allocate_cache(
    layers: Sequence[Attention],
    backend: type[AttentionBackend],
    limits: Limits,
    dtype: torch.dtype,
    device: torch.device,
) -> list[KVLayer]:
    """Keys and values of every layer, [pages, page_size, KV, D], in the backend's memory order.

    Memory is not initialised: attention reads only what was stored.
    """
    caches = []
    for layer in layers:
        size = (limits.pages, limits.page_size, layer.kv_heads, layer.head_dim)
        if backend.layout == "heads":
            size = (size[0], size[2], size[1], size[3])
        k, v = (torch.empty(size, dtype=dtype, device=device) for _ in range(2))
        if backend.layout == "heads":
            k, v = k.transpose(1, 2), v.transpose(1, 2)
        caches.append(KVLayer(k, v))
    return caches


def bind(
    model: nn.Module,
    kernels: Kernels,
    backend: type[AttentionBackend],
    options: Any,
    caches: Sequence[KVLayer],
    worker: Worker,
    positions: int | None = None,
    fusing: Fusing | None = None,
) -> list[AttentionBackend]:
    """Give every layer of a loaded model its kernels, backend, cache and rotary table.

    `caches[i]` is for the layer with `layer == i`. `positions`: rows of the rotary table, when
    fewer than the model's own limit are needed. `fusing`: where the worker says in which steps
    values may wait. Layers of one shape share a backend instance; returns the instances, whose
    `plan` the worker calls once a step. May be repeated.
    """
    backends: dict[AttentionShape, AttentionBackend] = {}
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    for module in model.modules():
        if isinstance(module, RMSNorm | GatedActivation | Attention):
            module.kernels = kernels
        if isinstance(module, Attention):
            shape = module.shape(worker)
            if shape not in backends:
                backends[shape] = backend(shape, options)
            module.backend, module.cache = backends[shape], caches[module.layer]
            module.fused = module.backend if isinstance(module.backend, FusedAttention) else None
        elif isinstance(module, Rotary):
            module.table = module.rope.table(worker.device, positions)
        elif isinstance(module, Linear):
            if isinstance(kernels, PackedProducts):
                module.pack(kernels, shared=owners[id(module.weight)] > 1)
            if isinstance(kernels, FusedProducts) and fusing is not None:
                module.fuse(kernels, fusing)
    return list(backends.values())
