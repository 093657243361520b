"""Layers: built on the meta device, bound to one worker's kernels, backends and cache."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from core.interfaces import AttentionBackend, Kernels
from core.layers import Attention, Linear, RMSNorm, Rotary, allocate_cache, bind
from core.rope import Rope
from core.types import Limits

LIMITS = Limits(
    max_num_seqs=2, max_num_batched_tokens=8, max_length=16, page_size=4, pages=6, vocab_size=9
)
CPU = torch.device("cpu")


def worker() -> SimpleNamespace:
    return SimpleNamespace(page_size=4, dtype=torch.float32, cache_dtype=torch.bfloat16, device=CPU)


class Model(nn.Module):
    """Three attention layers of two shapes, a shared weight, and a rotary table."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            Attention(4, 2, 8, 0.5, window=window, layer=i) for i, window in enumerate((3, None, 3))
        )
        self.embedding = nn.Embedding(9, 6)
        self.head = Linear(6, 9, bias=False)
        self.head.weight = self.embedding.weight
        self.up = Linear(6, 12)
        self.norm = RMSNorm(6, 1e-6)
        self.rotary = Rotary(Rope("default", 1e4, (), 8, 16, 16))


class Plain(Kernels):
    """Kernels that say what they were given."""

    rms_norm = add_rms_norm = silu_mul = lambda self, *args: args

    def rope_store(self, q, k, v, norms, rope, positions, cache, slots):  # type: ignore[no-untyped-def]
        self.given = (q, k, v, norms)
        return q + 1, k


class Packing(Plain):
    """Packs by turning over, so that a wrong order shows."""

    def pack(self, weight: Tensor) -> Tensor | None:
        return weight.T.contiguous() if len(weight) > 9 else None

    def linear(self, x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
        return x @ packed if bias is None else x @ packed + bias


class Echo(AttentionBackend):
    """Returns its queries."""

    def forward(self, q, k, v, cache, meta):  # type: ignore[no-untyped-def]
        return q


class Fusing(Echo):
    """Does everything between two projections, unless told not to."""

    asked = None

    def fuses(self, meta):  # type: ignore[no-untyped-def]
        self.asked = meta
        return meta == "meta"

    def forward_fused(self, qkv, norms, rope, positions, cache, meta):  # type: ignore[no-untyped-def]
        self.given = (norms, rope, positions, cache, meta)
        return qkv[:, :32] * 2


def built(kernels: Kernels, backend: type[AttentionBackend] = Echo):
    with torch.device("meta"):
        model = Model()
    assert all(p.is_meta for p in model.parameters())
    model.to_empty(device="cpu")
    model.head.weight = model.embedding.weight
    for p in model.parameters():
        nn.init.normal_(p)
    layers = list(model.layers)
    caches = allocate_cache(layers, backend, LIMITS, torch.bfloat16, CPU)
    backends = bind(model, kernels, backend, backend.Options(), caches, worker())
    return model, caches, backends


def test_one_backend_for_each_shape_and_one_cache_for_each_layer():
    model, caches, backends = built(Plain(Plain.Options()))
    assert [backend.shape.window for backend in backends] == [3, None]
    assert [layer.backend for layer in model.layers] == [backends[0], backends[1], backends[0]]
    assert [layer.cache is cache for layer, cache in zip(model.layers, caches, strict=True)]
    shape = backends[0].shape
    assert (shape.heads, shape.kv_heads, shape.head_dim, shape.scale) == (4, 2, 8, 0.5)
    assert (shape.page_size, shape.cache_dtype, shape.device) == (4, torch.bfloat16, "cpu")


@pytest.mark.parametrize("layout", ["tokens", "heads"])
def test_the_cache_has_the_memory_order_of_the_backend(layout, monkeypatch):
    monkeypatch.setattr(Echo, "layout", layout)
    _, caches, _ = built(Plain(Plain.Options()))
    for tensor in (x for cache in caches for x in cache):
        assert tensor.shape == (6, 4, 2, 8)
        assert tensor.stride() == ((64, 16, 8, 1) if layout == "tokens" else (64, 8, 32, 1))
    assert len({x.data_ptr() for cache in caches for x in cache}) == 6


def test_attention_splits_stores_and_attends():
    kernels = Plain(Plain.Options())
    model, _, _ = built(kernels)
    qkv = torch.arange(3 * 64.0).view(3, 64)
    q_norm, k_norm = RMSNorm(8, 0.25), RMSNorm(8, 0.25)
    batch = SimpleNamespace(apart=None, positions=None, attention=SimpleNamespace(slots=None))
    out = model.layers[0](qkv, q_norm, k_norm, None, batch)
    torch.testing.assert_close(out, qkv[:, :32] + 1)
    q, k, v, norms = kernels.given
    assert torch.equal(torch.cat((q, k, v), 1).flatten(1), qkv)
    assert (q.shape, k.shape, v.shape) == ((3, 4, 8), (3, 2, 8), (3, 2, 8))
    assert norms == (q_norm.weight, k_norm.weight, 0.25)
    model.layers[0](qkv, None, None, None, batch)
    assert kernels.given[3] is None


def test_a_backend_may_take_all_between_two_projections():
    model, caches, backends = built(Plain(Plain.Options()), Fusing)
    batch = SimpleNamespace(apart=None, positions="positions", attention="meta")
    out = model.layers[2](torch.ones(3, 64), None, None, "rope", batch)
    assert torch.equal(out, torch.full((3, 32), 2.0))
    assert backends[0].given == (None, "rope", "positions", caches[2], "meta")


def test_a_backend_that_fuses_may_leave_a_step_to_the_kernels():
    model, _, backends = built(Plain(Plain.Options()), Fusing)
    meta = SimpleNamespace(slots=None)
    qkv = torch.ones(3, 64)
    batch = SimpleNamespace(apart=None, positions=None, attention=meta)
    out = model.layers[2](qkv, None, None, None, batch)
    torch.testing.assert_close(out, qkv[:, :32] + 1)
    assert backends[0].asked is meta


def test_packed_weights_replace_those_that_nobody_shares():
    kernels = Packing(Packing.Options())
    model, _, _ = built(kernels)
    up = nn.Linear(6, 12)
    up.load_state_dict({"weight": model.up.weight.detach().T, "bias": model.up.bias.detach()})
    x = torch.randn(5, 6)
    torch.testing.assert_close(model.up(x), up(x))
    assert model.up.weight.shape == (6, 12)
    assert isinstance(model.up.weight, nn.Parameter)
    assert model.head.weight is model.embedding.weight


def test_a_shared_weight_stays_and_is_packed_beside():
    class All(Packing):
        def pack(self, weight: Tensor) -> Tensor | None:
            return weight.T.contiguous()

    model, _, _ = built(All(All.Options()))
    x = torch.randn(5, 6)
    assert model.head.weight is model.embedding.weight
    assert model.embedding.weight.shape == (9, 6)
    torch.testing.assert_close(model.head(x), x @ model.embedding.weight.T)


def test_the_rotary_table_is_filled_by_bind_and_never_saved():
    model, _, _ = built(Plain(Plain.Options()))
    assert model.rotary().shape == (16, 2, 4)
    assert torch.equal(model.rotary(), model.rotary.rope.table())
    assert not [name for name in model.state_dict() if "rotary" in name]


def test_a_linear_layer_is_plain_before_bind():
    layer = Linear(6, 12)
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    x = torch.randn(5, 6)
    torch.testing.assert_close(layer(x), x @ layer.weight.T + layer.bias)
