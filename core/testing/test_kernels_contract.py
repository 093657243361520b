"""What every kernel set must do; run for each `--kernels`."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from core.fusing import FusedProducts, value_of
from core.interfaces import Kernels
from core.layers import PackedProducts
from core.testing.kernels import EPS, HeadsCase, rms_norm, silu_mul
from core.testing.numbers import assert_close, bits, rms

Set = type[Kernels]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ROWS = (0, 1, 7, 130)
WIDTHS = (1, 48, 1000, 4096)
RANDOM_CASES = 12

dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
rows = pytest.mark.parametrize("count", ROWS)


def made(kernels: Set, dtype: torch.dtype, device: str) -> Kernels:
    """An instance; skips the test, with the reasons, where the set is not for this type."""
    if reasons := kernels.rejects(dtype, device.partition(":")[0]):
        pytest.skip("; ".join(reasons))
    return kernels(kernels.Options())


def normal(*size: int, dtype: torch.dtype, device: str, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(size))
    return torch.randn(*size, generator=generator).to(dtype).to(device)


def weight_of(width: int, dtype: torch.dtype, device: str) -> Tensor:
    """Positive and negative factors, none of them near 0 or 1."""
    x = normal(width, dtype=torch.float32, device="cpu")
    return (x + 1.5 * x.sign()).to(dtype).to(device)


def row_slice(x: Tensor) -> Tensor:
    """The same values with a stride between the rows."""
    wide = torch.full((*x.shape[:-1], 2 * x.shape[-1] + 8), torch.nan, dtype=x.dtype)
    wide = wide.to(x.device)
    wide[..., : x.shape[-1]] = x
    return wide[..., : x.shape[-1]]


def test_it_serves_an_ordinary_model(
    kernels: Set, device: str, refused: Callable[[list[str]], None]
) -> None:
    reasons = [kernels.rejects(dtype, device.partition(":")[0]) for dtype in DTYPES]
    assert all(isinstance(listed, list) for listed in reasons)
    if all(reasons):
        refused(sorted({reason for listed in reasons for reason in listed}))


@dtypes
@rows
@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm(kernels: Set, device: str, dtype: torch.dtype, count: int, width: int) -> None:
    ours = made(kernels, dtype, device)
    x = normal(count, width, dtype=dtype, device=device)
    weight = weight_of(width, dtype, device)
    for given in (x, row_slice(x), x.view(count, 1, width)):
        before = bits(given).clone()
        found = ours.rms_norm(given, weight, EPS)
        assert_close(found, rms_norm(given, weight, EPS), dtype)
        assert torch.equal(bits(given), before), "rms_norm has changed its input"


@dtypes
@pytest.mark.parametrize("scale", [1e-4, 300.0])
def test_rms_norm_of_very_small_and_large_numbers(
    kernels: Set, device: str, dtype: torch.dtype, scale: float
) -> None:
    """Squares of them are beyond float16, and below eps; the statistics are float32's."""
    ours = made(kernels, dtype, device)
    x = (scale * normal(5, 512, dtype=torch.float32, device=device)).to(dtype)
    weight = weight_of(512, dtype, device)
    assert_close(ours.rms_norm(x, weight, EPS), rms_norm(x, weight, EPS), dtype)
    zeros = torch.zeros_like(x)
    _, found = ours.add_rms_norm(zeros.clone(), x.clone(), weight, EPS)
    assert_close(found, x.double(), dtype, "the sum")


@dtypes
@rows
@pytest.mark.parametrize("width", WIDTHS)
def test_add_rms_norm(
    kernels: Set, device: str, dtype: torch.dtype, count: int, width: int
) -> None:
    ours = made(kernels, dtype, device)
    x = normal(count, width, dtype=dtype, device=device)
    residual = normal(count, width, dtype=dtype, device=device, seed=1)
    weight = weight_of(width, dtype, device)
    total = x.double() + residual.double()
    kept = bits(weight).clone()
    normed, summed = ours.add_rms_norm(x.clone(), residual.clone(), weight, EPS)
    assert_close(summed, total, dtype, "the sum")
    assert_close(normed, rms_norm(total, weight, EPS), dtype, "the norm")
    assert torch.equal(bits(weight), kept), "add_rms_norm has changed the weight"
    if count:
        assert normed.data_ptr() != summed.data_ptr(), "both results lie in the same memory"


@dtypes
@rows
@pytest.mark.parametrize("width", WIDTHS)
def test_silu_mul(kernels: Set, device: str, dtype: torch.dtype, count: int, width: int) -> None:
    ours = made(kernels, dtype, device)
    gate_up = 3 * normal(count, 2 * width, dtype=dtype, device=device)
    for given in (gate_up, row_slice(gate_up)):
        before = bits(given).clone()
        assert_close(ours.silu_mul(given), silu_mul(given), dtype)
        assert torch.equal(bits(given), before), "silu_mul has changed its input"


@dtypes
@pytest.mark.parametrize("layout", ["tokens", "heads"])
@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize("tokens", [0, 1, 50])
def test_rope_store(
    kernels: Set, device: str, dtype: torch.dtype, layout: str, norms: bool, tokens: int
) -> None:
    case = HeadsCase(tokens, dtype=dtype, layout=layout, norms=norms, device=device)
    case.check(made(kernels, dtype, device))


@pytest.mark.parametrize(
    "shape",
    [
        {"heads": 1, "kv_heads": 1},
        {"heads": 14, "kv_heads": 2},
        {"heads": 7, "kv_heads": 7},
        {"heads": 3, "kv_heads": 1},
        {"head_dim": 16},
        {"head_dim": 80},
        {"head_dim": 96},
        {"head_dim": 128},
        {"head_dim": 256},
        {"rotated": 32},
        {"rotated": 32, "norms": False},
        {"head_dim": 80, "rotated": 20},
        {"page_size": 1},
        {"page_size": 3},
        {"page_size": 256},
        {"joint": True},
        {"joint": True, "layout": "heads"},
        {"cache_dtype": torch.bfloat16},
        {"cache_dtype": torch.float16, "layout": "heads"},
        {"scale": 1e-3},
    ],
    ids=str,
)
def test_rope_store_of_every_shape(kernels: Set, device: str, shape: dict[str, Any]) -> None:
    HeadsCase(device=device, **shape).check(made(kernels, torch.float32, device))


@dtypes
@pytest.mark.parametrize("layout", ["tokens", "heads"])
@pytest.mark.parametrize(
    "nowhere", [(0,), (8,), (0, 4, 5, 8), tuple(range(1, 9)), tuple(range(9))], ids=str
)
def test_tokens_with_a_negative_slot_are_not_stored(
    kernels: Set, device: str, dtype: torch.dtype, layout: str, nowhere: tuple[int, ...]
) -> None:
    case = HeadsCase(dtype=dtype, layout=layout, nowhere=nowhere, device=device)
    case.check(made(kernels, dtype, device))


@pytest.mark.parametrize("seed", range(RANDOM_CASES))
def test_rope_store_of_random_steps(kernels: Set, device: str, seed: int) -> None:
    rng = random.Random(seed)
    dtype = rng.choice(DTYPES)
    kv_heads, tokens = rng.randint(1, 4), rng.randint(1, 70)
    head_dim = rng.choice((16, 32, 64, 128))
    HeadsCase(
        tokens,
        heads=kv_heads * rng.randint(1, 6),
        kv_heads=kv_heads,
        head_dim=head_dim,
        rotated=rng.choice((None, head_dim // 2)),
        norms=rng.random() < 0.7,
        dtype=dtype,
        layout=rng.choice(("tokens", "heads")),
        joint=rng.random() < 0.3,
        page_size=rng.choice((1, 5, 16, 64)),
        nowhere=tuple(rng.sample(range(tokens), rng.randint(0, tokens) // 3)),
        device=device,
        seed=seed,
    ).check(made(kernels, dtype, device))


@dtypes
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("size", [(512, 600), (1030, 257)])
def test_a_packed_product_is_the_product(
    kernels: Set, device: str, dtype: torch.dtype, bias: bool, size: tuple[int, int]
) -> None:
    """If the set offers `pack` and `linear` (`core.layers.PackedProducts`)."""
    ours = made(kernels, dtype, device)
    if not isinstance(ours, PackedProducts):
        pytest.skip("it leaves matrix products alone")
    weight = (normal(*size, dtype=torch.float32, device=device) / size[1] ** 0.5).to(dtype)
    packed = ours.pack(weight.clone())
    if packed is None:
        pytest.skip("it leaves these weights as they are")
    assert torch.equal(packed.to_dense(), weight)
    b = normal(size[0], dtype=dtype, device=device, seed=9) if bias else None
    for count in (0, 1, 16, 33):
        x = normal(count, size[1], dtype=dtype, device=device)
        exact = x.double() @ weight.double().T + (0 if b is None else b.double())
        assert_close(ours.linear(x, packed, b), exact, dtype)


@dtypes
@pytest.mark.parametrize("count", [1, 2, 5, 20, 70])
def test_what_waits_is_taken_in(kernels: Set, device: str, dtype: torch.dtype, count: int) -> None:
    """If the set offers `product` (`core.fusing.FusedProducts`)."""
    ours = made(kernels, dtype, device)
    if not isinstance(ours, FusedProducts):
        pytest.skip("it leaves products alone, and nothing waits for it")
    wide, narrow = (
        (normal(*size, dtype=torch.float32, device=device) / size[1] ** 0.5).to(dtype)
        for size in ((192, 80), (80, 192))
    )
    x = normal(count, 192, dtype=dtype, device=device)
    residual = normal(count, 80, dtype=dtype, device=device, seed=1)
    weight = weight_of(80, dtype, device)
    total = residual.double() + x.double() @ narrow.double().T
    product = ours.product(x, narrow, None, wait=False)
    assert_close(product, x.double() @ narrow.double().T, dtype)
    waiting = ours.product(x, narrow, None, wait=True)
    normed, summed = ours.add_rms_norm(waiting, residual, weight, EPS)
    assert_close(value_of(summed), total, dtype, "the sum")
    assert_close(value_of(normed), rms_norm(summed, weight, EPS), dtype, "the norm")
    gate_up = ours.product(normed, wide, None, wait=True)
    exact = silu_mul(rms_norm(summed, weight, EPS) @ wide.double().T)
    error = value_of(ours.silu_mul(gate_up)).double() - exact
    allowed = 1e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    assert rms(error) <= allowed * rms(exact), "the activation"  # of numbers that were rounded
