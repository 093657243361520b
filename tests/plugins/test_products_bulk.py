"""Products by bulk copies: each end beside float64, who may use them, and the layers they make.

Runs on CUDA (`--on cuda`), and without a GPU where TRITON_INTERPRET=1 is set.
"""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from core.fusing import Waiting
from core.testing.numbers import bits, rms
from tests.plugins.products import ENDS, HALF, INTERPRETED, Layer, ProductCase, normal

pytest.importorskip("triton")
from plugins.kernels.triton.kernels import TritonKernels
from plugins.kernels.triton.products.launch import ROOM, Work
from plugins.kernels.triton.products.recipes import (
    H200,
    MOST_TOKENS,
    Bulk,
    Loop,
    Recipes,
    Rows,
    Shape,
    Way,
)
from plugins.kernels.triton.products.waiting import FusedLayers
from tools.product_ways import bulk, candidates

WAYS = [
    Bulk(32, 64, 64, 1, 3, 4), Bulk(16, 128, 64, 2, 3, 4, early=2),
    Bulk(64, 64, 128, 2, 3, 4, early=3), Bulk(64, 32, 64, 3, 4, 4, early=9, swap=False),
    Bulk(128, 128, 64, 2, 3, 8),  # whose parts are added up by some rows at a time
]  # fmt: skip
SHAPES = [(64, 512), (50, 304), (131, 264), (24, 48)]  # outputs, inputs
REAL = [
    (6144, 4096, "plain"), (4096, 4096, "added"), (12288, 4096, "gated"), (4096, 12288, "added"),
    (4096, 1024, "plain"), (1024, 2048, "added"), (3072, 1024, "gated"), (1024, 3072, "added"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _runs(device: str) -> None:
    if reasons := TritonKernels.rejects(HALF, device.partition(":")[0]):
        pytest.skip("; ".join(reasons))
    if device.startswith("cuda") and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("bulk copies and their matrix units are Hopper's")


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("how", WAYS, ids=str)
def test_every_end(how: Bulk, end: str, device: str) -> None:
    for number, (outputs, inputs) in enumerate(SHAPES):
        tokens = (1, how.tokens - 5, how.tokens, 2 * how.tokens - 3)[number]
        ProductCase(
            tokens, outputs, inputs, end, HALF, device, bias=number == 1,
            normed=(0, 3, 300, 1)[number], strided=number == 2, seed=number,
        ).check(how)  # fmt: skip


@pytest.mark.parametrize("seed", range(6 if INTERPRETED else 16))
def test_random_shapes(seed: int, device: str) -> None:
    rng = random.Random(seed)
    most = 200 if INTERPRETED else 3000
    end = rng.choice(ENDS)
    rows = rng.choice((16, 32, 64, 128))
    swap = rows < 64 or rng.random() < 0.5
    columns = rng.choice((64, 128) if swap else (32, 64))
    tokens, outputs = rng.randint(1, MOST_TOKENS), rng.randint(1, most)
    halves = 2 if end == "gated" else 1
    room = halves * (-(-tokens // rows) * rows) * (-(-outputs // columns) * columns)
    splits = rng.randint(1, min(4, ROOM // room))
    how = Bulk(rows, columns, 64, splits, rng.randint(2, 4), 4, rng.randint(0, 3), swap)
    ProductCase(
        tokens, outputs, 8 * rng.randint(1, most // 8), end,
        HALF if rng.random() < 0.7 or INTERPRETED else torch.float16, device,
        bias=rng.random() < 0.3, normed=rng.choice((0, 1, 7, 128)), strided=rng.random() < 0.3,
        seed=seed,
    ).check(how, pdl=not INTERPRETED and rng.random() < 0.5)  # fmt: skip


@pytest.mark.parametrize("end", ["plain", "gated"])
def test_what_lies_around_is_not_read(end: str, device: str) -> None:
    """Rows behind the last one, of tokens and of the weight, are there and are not numbers."""
    case = ProductCase(21, 40, 72, end, HALF, device, strided=True)
    for name in ("x", "weight"):
        inner = getattr(case, name)
        around = torch.full((len(inner) + 200, inner.stride(0)), torch.nan, dtype=HALF)
        around = around.to(device)
        around[: len(inner), : inner.shape[1]] = inner
        setattr(case, name, around[: len(inner), : inner.shape[1]])
    case.check(Bulk(32, 64, 128, 2, 3, 4))


@pytest.mark.parametrize("end", ENDS)
def test_the_same_input_gives_the_same_bits(end: str, device: str) -> None:
    size = (200, 264) if INTERPRETED else (2048, 4096)
    case = ProductCase(40, *size, end, HALF, device)
    how = Bulk(64, 64, 64, 4, 3, 4)
    first, carried = case.run(how)
    for _ in range(1 if INTERPRETED else 50):
        again, carries = case.run(how)
        assert torch.equal(bits(first), bits(again))
        if carried is not None:
            assert torch.equal(bits(carried.squares), bits(carries.squares))


@pytest.mark.parametrize("tokens", [50, 200])
@pytest.mark.parametrize("size", REAL, ids=str)
def test_real_shapes(size: tuple[int, int, str], tokens: int, device: str) -> None:
    if INTERPRETED:
        pytest.skip("too large for the interpreter")
    outputs, inputs, end = size
    case = ProductCase(
        tokens, outputs, inputs, end, HALF, device, normed=0 if end == "added" else 64
    )
    for how in list(bulk(Shape(outputs, inputs, end == "gated"), tokens))[::4]:
        case.check(how, pdl=True)


# who may use them


def test_tensors_that_the_copy_engine_cannot_take_go_the_old_ways(device: str) -> None:
    """Rows must begin at multiples of 16 bytes."""
    how, step = Bulk(32, 64, 64, 1, 3, 4), 16 // HALF.itemsize
    fused = FusedLayers(Recipes({Shape(48, 64): {MOST_TOKENS: how}}), pdl=False)

    def way(x: Tensor, weight: Tensor) -> object:
        return fused._how(Work(x, weight))

    x, weight = normal(40, 64, device=device), normal(48, 64, device=device)
    assert way(x, weight) == how
    wide = normal(40, 64 + step, device=device)
    assert way(wide[:, :64], weight) == how
    assert way(wide[:, step:], weight) == how
    others = [(wide[:, 1:65], weight), (x, normal(48, 65, device=device)[:, :64])]
    for a, b in [*others, (x[:1].expand(40, 64), weight)]:
        assert way(a, b) is not None
        assert not isinstance(way(a, b), Bulk)
        wanted = a.double() @ b.double().T
        assert rms(fused.product(a, b, None) - wanted) <= 0.01 * rms(wanted)
    x = normal(100, 65, device=device)[:, 1:]
    assert way(x, weight) is None
    assert torch.equal(fused.product(x, weight, None), torch.nn.functional.linear(x, weight))


@pytest.mark.parametrize("how", [Rows(1, 4), Loop(64, 32, 64, 1, 3, 4), WAYS[0]], ids=str)
def test_numbers_that_do_not_lie_side_by_side_are_left_to_torch(how: Way, device: str) -> None:
    """A weight that lies column by column, and a bias with gaps."""
    fused = FusedLayers(Recipes({Shape(48, 64): {MOST_TOKENS: how}}), pdl=False)
    x, weight = normal(24, 64, device=device), normal(48, 64, device=device)
    bias = normal(96, device=device)[::2]
    for a, b in ((normal(64, 48, device=device).T, None), (weight, bias)):
        assert torch.equal(fused.product(x, a, b), torch.nn.functional.linear(x, a, b))
    assert fused.waits(x, normal(64, 48, device=device).T, None) is None


def test_beyond_the_rule_only_weights_with_a_recipe_wait(device: str) -> None:
    table = {Shape(48, 64, True): {MOST_TOKENS: Bulk(128, 64, 64, 1, 3, 4)}}
    ours = TritonKernels(TritonKernels.Options())
    ours.fused.recipes = Recipes(table)
    x, weight = normal(100, 64, device=device), normal(96, 64, device=device)
    assert isinstance(ours.product(x, weight, None, wait=True), Waiting)
    assert not isinstance(ours.product(x, weight[:48], None, wait=True), Waiting)


def test_a_few_ways_are_worth_a_try() -> None:
    """Tuning times each of them in a whole step."""
    for shape in H200:
        for tokens in (17, 32, 64, 65, 128, 256):
            found = [how for how in candidates(shape, tokens) if isinstance(how, Bulk)]
            assert 1 <= len(found) <= 12
            assert len(set(found)) == len(found)
            assert tokens > 64 or all(tokens <= how.tokens for how in found)
        assert not any(isinstance(how, Bulk) for how in candidates(shape, 16))
        assert list(candidates(shape, MOST_TOKENS + 1)) == [None]


# layers


def layer_of(device: str, tokens: int) -> tuple[Layer, Recipes, Tensor, Tensor]:
    size, inner = (64, 96) if INTERPRETED else (1024, 3072)
    layer = Layer(device, size, inner)
    layer.qkv = normal(inner, size, device=device, seed=7) / size**0.5
    how = Bulk(128, 64, 64, 2, 3, 8, early=2) if tokens > 64 else Bulk(64, 64, 64, 2, 4, 4, early=3)
    shapes = Shape(size, inner), Shape(inner, size, True), Shape(inner, size)
    x = normal(tokens, inner, device=device)
    residual = normal(tokens, size, device=device, seed=1)
    return layer, Recipes({shape: {MOST_TOKENS: how} for shape in shapes}), x, residual


@pytest.mark.parametrize("tokens", [40, 150, 256])
def test_a_fused_layer_is_as_close_as_one_of_single_kernels(tokens: int, device: str) -> None:
    ours = TritonKernels(TritonKernels.Options())
    layer, recipes, x, residual = layer_of(device, tokens)
    wanted = layer.exact(x, residual)
    plain = layer.run(ours, x.clone(), residual.clone(), wait=False)
    ours.fused.recipes = recipes
    fused = layer.run(ours, x.clone(), residual.clone(), wait=True)
    assert not torch.equal(fused[0], plain[0]), "no recipe was used"
    for which, exact in enumerate(wanted):
        error = rms(fused[which].double() - exact)
        assert error <= 1.2 * rms(plain[which].double() - exact) + 1e-6 * rms(exact)


@pytest.mark.parametrize("tokens", [40, 150])
def test_overlapping_and_captured_layers_give_the_bits_of_products_in_sequence(
    tokens: int, device: str
) -> None:
    if not device.startswith("cuda"):
        pytest.skip("overlap and graphs need --on cuda")
    layer, recipes, x, residual = layer_of(device, tokens)
    one_by_one, ours = (TritonKernels(TritonKernels.Options()) for _ in range(2))
    one_by_one.fused, ours.fused = FusedLayers(recipes, pdl=False), FusedLayers(recipes)
    with torch.cuda.stream(torch.cuda.Stream()):
        wanted = layer.run(one_by_one, x, residual.clone(), wait=True, layers=4)
        for _ in range(100):
            found = layer.run(ours, x, residual.clone(), wait=True, layers=4)
            assert all(torch.equal(bits(a), bits(b)) for a, b in zip(found, wanted, strict=True))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = layer.run(ours, x, residual.clone(), wait=True, layers=4)
        for seed in range(5):
            x.copy_(normal(*x.shape, device=device, seed=seed))
            graph.replay()
            torch.cuda.synchronize()
            wanted = layer.run(one_by_one, x, residual.clone(), wait=True, layers=4)
            assert all(torch.equal(bits(a), bits(b)) for a, b in zip(found, wanted, strict=True))
