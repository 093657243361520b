"""The torch kernels against transformers' modules and against float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, apply_rotary_pos_emb

from core.types import KVLayer
from plugins.kernels import torch as module
from plugins.kernels.torch import TorchKernels

EPS = 1e-5
kernels = TorchKernels(TorchKernels.Options())


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def their_norm(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    norm = Qwen3RMSNorm(len(weight), eps).to(x.device)
    norm.weight.data = weight
    return norm(x).detach()


def exact_norm(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    x = x.double()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.double()


def rms(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt())


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_rms_norm_is_that_of_transformers(scale, device):
    x, weight = scale * torch.randn(7, 48, device=device), torch.rand(48, device=device)
    torch.testing.assert_close(kernels.rms_norm(x, weight, EPS), their_norm(x, weight))


def test_rms_norm_in_bfloat16_rounds_no_more_than_transformers(device):
    x = torch.randn(50, 256, device=device).bfloat16()
    weight = torch.rand(256, device=device).bfloat16()
    found, exact = kernels.rms_norm(x, weight, EPS), exact_norm(x, weight)
    assert found.dtype == torch.bfloat16
    assert rms(found - exact) <= rms(their_norm(x, weight) - exact)


def test_add_rms_norm_gives_the_norm_of_the_sum_and_the_sum(device):
    x, residual = torch.randn(2, 7, 48, device=device)
    weight = torch.rand(48, device=device)
    total = x + residual
    normed, summed = kernels.add_rms_norm(x.clone(), residual.clone(), weight, EPS)
    torch.testing.assert_close(summed, total)
    torch.testing.assert_close(normed, their_norm(total, weight))


def test_silu_mul_gates_the_second_half_with_the_first(device):
    gate_up = torch.randn(5, 20, device=device)
    gate, up = gate_up[:, :10].double(), gate_up[:, 10:].double()
    expected = (gate * torch.sigmoid(gate) * up).float()
    torch.testing.assert_close(kernels.silu_mul(gate_up), expected)


class Heads:
    """q, k and v as views into one projection, a rotary table, and an empty cache."""

    def __init__(
        self,
        tokens: int = 5,
        heads: int = 4,
        kv_heads: int = 2,
        size: int = 16,
        rotated: int = 16,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        layout: str = "tokens",
    ) -> None:
        packed = torch.randn(tokens, heads + 2 * kv_heads, size, device=device).to(dtype)
        self.q, self.k, self.v = packed.split((heads, kv_heads, kv_heads), 1)
        self.before = packed.clone()
        angles = torch.arange(40.0, device=device)[:, None] * torch.rand(
            rotated // 2, device=device
        )
        self.rope = torch.stack([angles.cos(), angles.sin()], 1)
        self.positions = torch.randperm(40, device=device)[:tokens]
        self.slots = torch.randperm(24, device=device)[:tokens]
        shape = (6, 4, kv_heads, size) if layout == "tokens" else (6, kv_heads, 4, size)
        caches = [torch.full(shape, torch.nan, dtype=dtype, device=device) for _ in range(2)]
        if layout == "heads":
            caches = [cache.transpose(1, 2) for cache in caches]
        self.cache = KVLayer(*caches)
        self.norms: tuple[Tensor, Tensor, float] | None = (
            torch.rand(size, device=device).to(dtype) + 0.5,
            torch.rand(size, device=device).to(dtype) + 0.5,
            EPS,
        )

    def run(self) -> tuple[Tensor, Tensor]:
        return kernels.rope_store(
            self.q,
            self.k,
            self.v,
            self.norms,
            self.rope,
            self.positions,
            self.cache,
            self.slots,
        )

    def theirs(self, dtype: torch.dtype | None = None) -> list[Tensor]:
        """transformers' way, in its own precision, or with everything in `dtype`."""
        q, k = (x.to(dtype or x.dtype) for x in (self.q, self.k))
        if self.norms is not None:
            norm = their_norm if dtype is None else exact_norm
            q, k = (norm(x, w) for x, w in ((q, self.norms[0]), (k, self.norms[1])))
        angles = self.rope[self.positions].to(q.dtype)
        cos, sin = (torch.cat((x, x), -1) for x in (angles[:, 0], angles[:, 1]))
        return list(apply_rotary_pos_emb(q, k, cos, sin))


@pytest.mark.parametrize("tokens", [1, 2, 16])
def test_rope_store_norms_and_turns_as_transformers(tokens, device):
    case = Heads(tokens, device=device)
    torch.testing.assert_close(list(case.run()), case.theirs(), rtol=0, atol=1e-5)


def test_rope_store_without_norms(device):
    case = Heads(device=device)
    case.norms = None
    torch.testing.assert_close(list(case.run()), case.theirs(), rtol=0, atol=1e-5)


def test_rope_store_in_bfloat16_rounds_no_more_than_transformers(device):
    case = Heads(16, dtype=torch.bfloat16, size=64, rotated=64, device=device)
    exact = case.theirs(torch.float64)
    for found, rough, true in zip(case.run(), case.theirs(), exact, strict=True):
        assert found.dtype == torch.bfloat16
        assert rms(found - true) <= rms(rough - true)


def test_a_narrow_table_leaves_the_rest_of_a_head(device):
    case = Heads(size=16, rotated=6, device=device)
    case.norms = None
    q, k = case.run()
    torch.testing.assert_close(q[..., 6:], case.q[..., 6:])
    narrow = Heads(size=16, rotated=6, device=device)
    narrow.norms = None
    narrow.q, narrow.k = case.q[..., :6], case.k[..., :6]
    narrow.rope, narrow.positions = case.rope, case.positions
    for found, expected in zip((q, k), narrow.theirs(), strict=True):
        torch.testing.assert_close(found[..., :6], expected, rtol=0, atol=1e-5)


def expected_cache(case: Heads, k: Tensor) -> tuple[Tensor, Tensor]:
    keys, values = torch.full((2, 6, 4, *k.shape[1:]), torch.nan, dtype=k.dtype)
    for token, slot in enumerate(case.slots.tolist()):
        if slot >= 0:
            keys[slot // 4, slot % 4] = k[token].cpu()
            values[slot // 4, slot % 4] = case.v[token].cpu()
    return keys, values


def assert_stored(case: Heads, k: Tensor) -> None:
    for found, expected in zip(case.cache, expected_cache(case, k), strict=True):
        torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("layout", ["tokens", "heads"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rope_store_stores_turned_keys_and_plain_values(layout, dtype, device):
    case = Heads(layout=layout, dtype=dtype, device=device)
    assert_stored(case, case.run()[1])


def test_rope_store_leaves_its_inputs(device):
    case = Heads(device=device)
    case.run()
    torch.testing.assert_close(torch.cat((case.q, case.k, case.v), 1), case.before)


def test_a_slice_of_a_larger_cache_is_written_in_place(device):
    case = Heads(device=device)
    both = torch.full((6, 2, 4, 2, 16), torch.nan, device=device)
    case.cache = KVLayer(both[:, 0], both[:, 1])
    assert_stored(case, case.run()[1])


NEGATIVE = [[-1, 5, 9, -1, 3], [7, -1, -1, -1, -1], [-1] * 5, [5, 9, 3, 0, -1], [0, -1, -2, 1, -9]]


@pytest.mark.parametrize("slots", NEGATIVE)
@pytest.mark.parametrize("layout", ["tokens", "heads"])
def test_negative_slots_are_not_stored(slots, layout, device):
    case = Heads(layout=layout, device=device)
    case.slots = torch.tensor(slots, device=device)
    assert_stored(case, case.run()[1])


@pytest.mark.parametrize("slots", NEGATIVE)
def test_negative_slots_are_not_stored_where_the_host_does_not_wait(slots):
    case = Heads()
    case.cache.k[0, 0], case.cache.v[0, 0] = 1.5, 2.5  # what slot 0 holds must stay
    case.slots = torch.tensor(slots)
    k, v, kept = module._repeated(case.k, case.v, case.cache, case.slots)
    assert k.shape == case.k.shape
    assert int(kept.min()) >= 0
    module._store(k, case.cache.k, kept)
    module._store(v, case.cache.v, kept)
    expected = [x.clone() for x in expected_cache(case, case.k)]
    if 0 not in slots:
        expected[0][0, 0], expected[1][0, 0] = 1.5, 2.5
    for found, wanted in zip(case.cache, expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


def test_no_tokens_at_all():
    case = Heads(tokens=0)
    q, k = case.run()
    assert (q.shape, k.shape) == ((0, 4, 16), (0, 2, 16))


packs = TorchKernels(TorchKernels.Options(pack_from=0))


@given(
    rows=st.integers(0, 40),
    inner=st.integers(1, 70),
    outer=st.integers(1, 70),
    bias=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
@settings(max_examples=40)
def test_a_packed_product_is_the_product(rows, inner, outer, bias, dtype):
    weight = torch.randn(outer, inner).to(dtype)
    packed = packs.pack(weight)
    if packed is None:
        pytest.skip("this machine's torch packs no such weights")
    x, b = torch.randn(rows, inner).to(dtype), torch.randn(outer).to(dtype) if bias else None
    found = packs.linear(x, packed, b)
    exact = x.double() @ weight.double().T + (0 if b is None else b.double())
    assert found.shape == exact.shape
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 0.01}[dtype]
    torch.testing.assert_close(found.double(), exact, rtol=tolerance, atol=5 * tolerance)
    assert torch.equal(packed.to_dense(), weight)


@pytest.mark.parametrize(
    "weight",
    [torch.zeros(10, 10), torch.zeros(1024, 1024).to(torch.int8), torch.zeros(600, 600).double()],
    ids=["small", "int8", "float64"],
)
def test_weights_that_gain_nothing_stay(weight):
    assert kernels.pack(weight) is None


def test_packing_can_be_switched_off():
    off = TorchKernels(TorchKernels.Options(pack_from=None))
    assert off.pack(torch.zeros(1024, 1024)) is None
