"""The Triton kernels beyond the kit: real shapes, strides, graphs, and kernels that overlap.

Runs on CUDA (`--on cuda`), and without a GPU where TRITON_INTERPRET=1 is set.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from core.testing.kernels import EPS, HeadsCase, rms_norm, silu_mul
from core.testing.numbers import assert_close, bits
from plugins.kernels.torch import TorchKernels

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HALF = torch.float16 if INTERPRETED else torch.bfloat16  # the interpreter rounds bfloat16 down
MODELS = {"0.6B": (1024, 3072, 16, 8), "8B": (4096, 12288, 32, 8), "14B": (5120, 17408, 40, 8)}

models = pytest.mark.parametrize("model", MODELS)
counts = pytest.mark.parametrize("count", [1, 3] if INTERPRETED else [1, 3, 8, 64, 256, 511, 2048])


@pytest.fixture
def ours(device: str) -> Any:
    from plugins.kernels.triton.kernels import TritonKernels

    if reasons := TritonKernels.rejects(torch.float32, device.partition(":")[0]):
        pytest.skip("; ".join(reasons))
    return TritonKernels(TritonKernels.Options())


def normal(*size: int, device: str, dtype: torch.dtype = HALF, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(size))
    return torch.randn(*size, generator=generator).to(dtype).to(device)


def test_it_is_refused_where_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from plugins.kernels.triton.kernels import TritonKernels

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    (reason,) = TritonKernels.rejects(torch.float64, "cuda")
    assert "float64" in reason
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    (reason,) = TritonKernels.rejects(torch.float32, "cuda")
    assert "8.0" in reason
    if not INTERPRETED:
        (reason,) = TritonKernels.rejects(torch.float32, "cpu")
        assert "kernels: torch" in reason


@models
@counts
def test_norms_of_real_sizes(ours: Any, device: str, model: str, count: int) -> None:
    size = MODELS[model][0]
    x, residual = normal(count, size, device=device), normal(count, size, device=device, seed=1)
    weight = normal(size, device=device, seed=2)
    assert_close(ours.rms_norm(x, weight, EPS), rms_norm(x, weight, EPS), HALF)
    normed, total = ours.add_rms_norm(x.clone(), residual.clone(), weight, EPS)
    wanted, wanted_total = TorchKernels(TorchKernels.Options()).add_rms_norm(
        x, residual, weight, EPS
    )
    assert torch.equal(total, wanted_total)
    assert_close(normed, rms_norm(wanted_total, weight, EPS), HALF)
    assert (normed.float() - wanted.float()).abs().max() <= wanted.abs().max() * 2**-7


def test_the_sum_replaces_the_residual_and_the_norm_the_input(ours: Any, device: str) -> None:
    x, residual = normal(2, 256, device=device), normal(2, 256, device=device, seed=1)
    normed, total = ours.add_rms_norm(x, residual, normal(256, device=device), EPS)
    assert normed.data_ptr() == x.data_ptr()
    assert total.data_ptr() == residual.data_ptr()


@pytest.mark.parametrize("which", ["x", "residual", "both", "same"])
def test_a_sum_of_slices_or_of_a_tensor_with_itself(ours: Any, device: str, which: str) -> None:
    wide = normal(5, 600, device=device)
    x = wide[:, :200] if which in ("x", "both") else wide[:, :200].contiguous()
    residual = wide[:, 200:400] if which in ("residual", "both") else normal(5, 200, device=device)
    residual = x if which == "same" else residual
    exact = x.double() + residual.double()
    untouched = wide[:, 400:].clone()
    weight = normal(200, device=device, seed=2)
    normed, total = ours.add_rms_norm(x, residual, weight, EPS)
    assert_close(total, exact, HALF)
    assert_close(normed, rms_norm(total, weight, EPS), HALF)
    assert torch.equal(wide[:, 400:], untouched)


@pytest.mark.parametrize("size", [1, 2, 3, 17, 255, 257, 3000, 20000])
def test_norms_of_odd_sizes(ours: Any, device: str, size: int) -> None:
    x = normal(4, size, device=device)
    weight = normal(size, device=device, seed=2)
    assert_close(ours.rms_norm(x, weight, EPS), rms_norm(x, weight, EPS), HALF)


def test_tensors_that_are_not_aligned(ours: Any, device: str) -> None:
    memory = normal(3 * 1000 + 1, device=device)
    for start in (0, 1, 0):  # the variant for aligned tensors must not be used for the others
        x = memory[start : start + 3000].view(3, 1000)
        assert_close(ours.rms_norm(x, memory[:1000], EPS), rms_norm(x, memory[:1000], EPS), HALF)
        assert_close(ours.silu_mul(x), silu_mul(x), HALF)


@models
@counts
def test_silu_mul_of_real_sizes(ours: Any, device: str, model: str, count: int) -> None:
    gate_up = 3 * normal(count, 2 * MODELS[model][1], device=device)
    assert_close(ours.silu_mul(gate_up), silu_mul(gate_up), HALF)


def test_silu_of_the_extremes(ours: Any, device: str) -> None:
    gate = torch.tensor([-3e38, -1e4, -100.0, 0.0, 100.0, 1e4], device=device)
    gate_up = torch.stack((gate, torch.ones_like(gate)), 0).flatten()[None]
    found = ours.silu_mul(gate_up)
    assert torch.equal(found, gate.clamp(min=0)[None])


@models
@counts
def test_rope_store_of_real_sizes(ours: Any, device: str, model: str, count: int) -> None:
    _, _, heads, kv_heads = MODELS[model]
    for layout in ("tokens", "heads"):
        HeadsCase(
            count, heads=heads, kv_heads=kv_heads, head_dim=128, dtype=HALF, layout=layout,
            device=device, nowhere=(count // 2,), page_size=64,
        ).check(ours)  # fmt: skip


@pytest.mark.parametrize("seed", range(3 if INTERPRETED else 40))
def test_rope_store_of_random_shapes(ours: Any, device: str, seed: int) -> None:
    rng = random.Random(seed)
    head_dim = rng.choice((16, 32, 64, 80, 96, 112, 128, 160, 192, 256))
    tokens = rng.randint(1, 6 if INTERPRETED else 300)
    kv_heads = rng.randint(1, 9)
    HeadsCase(
        tokens,
        heads=kv_heads * rng.randint(1, 6),
        kv_heads=kv_heads,
        head_dim=head_dim,
        rotated=rng.choice((None, None, head_dim // 2, head_dim // 4, 2)),
        norms=rng.random() < 0.6,
        dtype=rng.choice((torch.float32, HALF, torch.float16)),
        cache_dtype=rng.choice((None, None, HALF, torch.float32)),
        layout=rng.choice(("tokens", "heads")),
        joint=rng.random() < 0.4,
        page_size=rng.choice((1, 3, 16, 64, 256)),
        nowhere=tuple(rng.sample(range(tokens), rng.randint(0, tokens))),
        device=device,
        seed=seed,
    ).check(ours)


def test_q_and_k_may_be_tensors_of_their_own(ours: Any, device: str) -> None:
    case = HeadsCase(dtype=HALF, device=device)
    case.q, case.k, case.v = (x.clone() for x in (case.q, case.k, case.v))
    case.check(ours)


# on the GPU


def layer(ours: Any, case: HeadsCase, x: Tensor, residual: Tensor, weights: list[Tensor]) -> Tensor:
    """Kernels that each need what the one before has written; with matrix products, and without."""
    gain, wide, narrow = weights
    normed, total = ours.add_rms_norm(x.clone(), residual.clone(), gain, EPS)
    normed = ours.rms_norm(ours.rms_norm(normed, gain, EPS), gain, EPS)
    hidden = ours.silu_mul(normed @ wide)
    q, k = ours.rope_store(
        case.q, case.k, case.v, (case.weights[0], case.weights[1], EPS), case.rope,
        case.positions, case.cache, case.slots,
    )  # fmt: skip
    out, total = ours.add_rms_norm(hidden @ narrow, total, gain, EPS)
    return torch.cat((out.flatten(), total.flatten(), q.flatten(), k.flatten()))


@pytest.fixture
def chain(device: str) -> Any:
    if not device.startswith("cuda"):
        pytest.skip("overlap and graphs need --on cuda")
    case = HeadsCase(16, heads=16, kv_heads=8, head_dim=128, dtype=HALF, device=device)
    weights = [
        normal(1024, device=device),
        normal(1024, 4096, device=device, seed=1) / 32,
        normal(2048, 1024, device=device, seed=2) / 32,
    ]
    return case, weights


def test_overlapping_kernels_give_the_bits_of_kernels_in_sequence(
    ours: Any, device: str, chain: Any
) -> None:
    from plugins.kernels.triton import kernels

    case, weights = chain
    x, residual = normal(16, 1024, device=device), normal(16, 1024, device=device, seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "_pdl", lambda device: False)
        wanted = bits(layer(ours, case, x, residual, weights))
    torch.cuda.synchronize()
    found = [layer(ours, case, x, residual, weights) for _ in range(200)]
    assert all(torch.equal(bits(one), wanted) for one in found)


def test_a_captured_chain_follows_its_inputs(ours: Any, device: str, chain: Any) -> None:
    case, weights = chain
    x, residual = normal(16, 1024, device=device), normal(16, 1024, device=device, seed=1)
    with torch.cuda.stream(torch.cuda.Stream()):
        layer(ours, case, x, residual, weights)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = layer(ours, case, x, residual, weights)
    for seed in range(5):
        x.copy_(normal(16, 1024, device=device, seed=seed))
        case.slots.copy_(case.slots.roll(1))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(bits(found), bits(layer(ours, case, x, residual, weights)))


def test_nothing_waits_for_the_device(ours: Any, device: str, chain: Any) -> None:
    case, weights = chain
    x = normal(16, 1024, device=device)
    layer(ours, case, x, x, weights)
    torch.cuda.set_sync_debug_mode("error")
    try:
        layer(ours, case, x, x, weights)
    finally:
        torch.cuda.set_sync_debug_mode("default")
