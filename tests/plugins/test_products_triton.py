"""Products in Triton, each way of them with each end, beside float64; and layers that fuse them.

Runs on CUDA (`--on cuda`), and without a GPU where TRITON_INTERPRET=1 is set.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from core.testing.kernels import EPS, rms_norm
from core.testing.numbers import assert_close, bits, rms
from tests.plugins.products import ENDS, HALF, INTERPRETED, Layer, ProductCase, normal

pytest.importorskip("triton")
from plugins.kernels.triton.kernels import TritonKernels
from plugins.kernels.triton.products.recipes import (
    BY_RULE,
    H200,
    MOST_TOKENS,
    SMALL,
    Loop,
    Once,
    Recipes,
    Rows,
    Shape,
    by_rule,
)

WAYS = [
    Rows(1, 4), Rows(2, 2), Rows(4, 4),
    Once(16, 32, 64, 1, 2, 4), Once(16, 16, 128, 3, 4, 2),
    Loop(16, 16, 64, 1, 2, 2), Loop(32, 32, 64, 2, 3, 4, True), Loop(64, 64, 128, 4, 3, 4),
]  # fmt: skip
SHAPES = [(64, 512), (50, 300), (37, 48), (131, 257)]  # outputs, inputs


@pytest.fixture(autouse=True)
def _runs(device: str) -> None:
    if reasons := TritonKernels.rejects(HALF, device.partition(":")[0]):
        pytest.skip("; ".join(reasons))


def tokens_of(how: Any) -> list[int]:
    return [1, 2, 3] if isinstance(how, Rows) else [1, how.tokens - 5, how.tokens]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("how", WAYS, ids=str)
def test_every_way_with_every_end(how: Any, end: str, device: str) -> None:
    if end == "gated" and getattr(how, "splits", 1) > 1:
        pytest.skip("a gated product is not split")
    for number, (outputs, inputs) in enumerate(SHAPES):
        tokens = tokens_of(how)[number % 3]
        ProductCase(
            tokens, outputs, inputs, end, HALF, device, bias=number == 1,
            normed=(0, 3, 40, 1)[number], strided=number == 2, seed=number,
        ).check(how)  # fmt: skip


@pytest.mark.parametrize("shape", H200, ids=str)
def test_every_way_of_the_table(shape: Shape, device: str) -> None:
    """With the fewest and the most tokens that it is for, and the last rows of large heads left
    out."""
    if INTERPRETED:
        pytest.skip("too large for the interpreter")
    fewest, outputs = 1, min(shape.outputs, 1 << 14)
    for most, how in H200[shape].items():
        for end in ("gated",) if shape.gated else ("plain", "added"):
            for tokens in {fewest, most} if how is not None else ():
                ProductCase(
                    tokens, outputs, shape.inputs, end, HALF, device,
                    normed=0 if end == "added" else 64, seed=tokens,
                ).check(how, pdl=True)  # fmt: skip
        fewest = most + 1


@pytest.mark.parametrize("seed", range(6 if INTERPRETED else 60))
def test_random_shapes_by_rule(seed: int, device: str) -> None:
    rng = random.Random(seed)
    most = 200 if INTERPRETED else 3000
    end = rng.choice(ENDS)
    tokens, inputs = rng.randint(1, BY_RULE), 8 * rng.randint(1, most // 8)
    if rng.random() < 0.4:
        tokens = rng.randint(1, 4)
    case = ProductCase(
        tokens, rng.randint(1, most), inputs, end,
        HALF if rng.random() < 0.7 or INTERPRETED else torch.float16, device,
        bias=rng.random() < 0.3, normed=rng.choice((0, 1, 7, 128)), strided=rng.random() < 0.3,
        seed=seed,
    )  # fmt: skip
    shape = Shape(case.outputs, inputs, end == "gated")
    how = by_rule(shape, tokens)
    assert how is not None or shape.bytes > SMALL, "a small weight"
    if how is not None:
        case.check(how)


@pytest.mark.parametrize("tokens", [1, 2, 5, 16, 32, 64])
@pytest.mark.parametrize(
    "size",
    [
        (4096, 1024, "plain"), (1024, 2048, "added"), (3072, 1024, "gated"), (1024, 3072, "added"),
        (6144, 4096, "plain"), (4096, 4096, "added"), (12288, 4096, "gated"),
        (4096, 12288, "added"),
        (1408, 1024, "plain"), (1024, 768, "plain"), (1024, 1024, "gated"),  # 0.6B on three ranks
        (2560, 9728, "added"), (5120, 17408, "added"), (25600, 5120, "gated"),
    ],
)  # fmt: skip
def test_real_shapes(size: tuple[int, int, str], tokens: int, device: str) -> None:
    if INTERPRETED:
        pytest.skip("too large for the interpreter")
    outputs, inputs, end = size
    how = Recipes().of(Shape(outputs, inputs, end == "gated"), tokens)
    if how is None:
        pytest.skip("torch multiplies")
    case = ProductCase(
        tokens, outputs, inputs, end, HALF, device, normed=0 if end == "added" else 64
    )
    case.check(how, pdl=True)


# what waits


@pytest.fixture
def ours() -> TritonKernels:
    return TritonKernels(TritonKernels.Options())


@pytest.mark.parametrize("tokens", [1, 2, 7, 33, 64, 65])
def test_a_fused_layer_is_as_close_as_one_of_single_kernels(
    ours: TritonKernels, tokens: int, device: str
) -> None:
    layer = Layer(device) if INTERPRETED else Layer(device, 1024, 1536)
    x = normal(tokens, len(layer.down[0]), device=device)
    residual = normal(tokens, len(layer.o), device=device, seed=1)
    wanted = layer.exact(x, residual)
    plain = layer.run(ours, x.clone(), residual.clone(), wait=False)
    fused = layer.run(ours, x.clone(), residual.clone(), wait=True)
    for which, exact in enumerate(wanted):
        error = rms(fused[which].double() - exact)
        assert error <= 1.2 * rms(plain[which].double() - exact) + 1e-6 * rms(exact)


def test_the_sum_is_in_the_memory_of_the_residual(ours: TritonKernels, device: str) -> None:
    layer = Layer(device)
    x, residual = normal(3, 96, device=device), normal(3, 64, device=device)
    waiting = ours.product(x, layer.o, None, wait=True)
    normed, total = ours.add_rms_norm(waiting, residual, layer.gains[0], EPS)
    assert total.data_ptr() == residual.data_ptr()
    from core.fusing import Waiting

    assert isinstance(normed, Waiting), "the norm is carried"
    assert_close(normed.value(), rms_norm(total.double(), layer.gains[0].double(), EPS), HALF)


def test_float16_is_not_carried(ours: TritonKernels, device: str) -> None:
    """The residual times the norm's weight may be beyond its largest number."""
    made = [normal(*size, device=device).half() for size in ((2, 64), (64, 64), (2, 64), (64,))]
    x, weight, residual, gain = made
    residual *= 3000
    normed, _ = ours.add_rms_norm(
        ours.product(x, weight, None, wait=True), residual, gain * 100, EPS
    )
    assert isinstance(normed, torch.Tensor)
    assert normed.isfinite().all()


@pytest.mark.parametrize("tokens", [BY_RULE + 1, MOST_TOKENS + 1])
def test_products_of_many_tokens_are_torchs(ours: TritonKernels, tokens: int, device: str) -> None:
    x, weight = normal(tokens, 64, device=device), normal(32, 64, device=device)
    found = ours.product(x, weight, None, wait=True)
    assert type(found) is torch.Tensor
    assert torch.equal(found, torch.nn.functional.linear(x, weight))


def test_the_set_can_leave_products_to_torch(device: str) -> None:
    ours = TritonKernels(TritonKernels.Options(products=False))
    x, weight = normal(2, 64, device=device), normal(32, 64, device=device)
    assert torch.equal(
        ours.product(x, weight, None, wait=True), torch.nn.functional.linear(x, weight)
    )


# on the GPU


@pytest.mark.parametrize("tokens", [1, 8, 64])
def test_overlapping_products_give_the_bits_of_products_in_sequence(
    ours: TritonKernels, tokens: int, device: str
) -> None:
    if not device.startswith("cuda"):
        pytest.skip("overlap needs --on cuda")
    layer = Layer(device, 1024, 3072)
    x, residual = normal(tokens, 3072, device=device), normal(tokens, 1024, device=device, seed=1)
    layer.qkv = normal(3072, 1024, device=device, seed=7) / 32
    one_by_one = TritonKernels(TritonKernels.Options())
    one_by_one.fused._pdl = False
    wanted = layer.run(one_by_one, x, residual.clone(), wait=True, layers=4)
    torch.cuda.synchronize()
    for _ in range(100):
        found = layer.run(ours, x, residual.clone(), wait=True, layers=4)
        assert all(torch.equal(bits(a), bits(b)) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("tokens", [1, 8, 64])
def test_a_captured_layer_follows_its_inputs(ours: TritonKernels, tokens: int, device: str) -> None:
    if not device.startswith("cuda"):
        pytest.skip("graphs need --on cuda")
    layer = Layer(device, 1024, 3072)
    layer.qkv = normal(3072, 1024, device=device, seed=7) / 32
    x, residual = normal(tokens, 3072, device=device), normal(tokens, 1024, device=device, seed=1)
    with torch.cuda.stream(torch.cuda.Stream()):
        layer.run(ours, x, residual.clone(), wait=True, layers=3)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = layer.run(ours, x, residual.clone(), wait=True, layers=3)
        for seed in range(5):
            x.copy_(normal(tokens, 3072, device=device, seed=seed))
            graph.replay()
            torch.cuda.synchronize()
            wanted = layer.run(ours, x, residual.clone(), wait=True, layers=3)
            assert all(torch.equal(bits(a), bits(b)) for a, b in zip(found, wanted, strict=True))
