"""What the compiler makes of products for Hopper. Needs Triton, and no GPU."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import torch

triton = pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)

# ruff: noqa: E402
from plugins.kernels.triton.products.carried import Carried
from plugins.kernels.triton.products.launch import HELD, Products, Work
from plugins.kernels.triton.products.recipes import (
    H200,
    Bulk,
    Loop,
    Once,
    Recipe,
    Recipes,
    Rows,
    Shape,
)
from tests.hopper import SHARED, Compiled, Compiling, meta
from tools.product_ways import bulk

# What the recipes were timed with. Another compiler deals out registers and barriers in its way:
# what it makes is as right, and may be slower.
TIMED = triton.__version__.startswith("3.6.")
PTXAS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
SMALL = [  # one of each way with each end: what all of them share
    (Shape(1024, 1024), Rows(4, 4), "carried"),
    (Shape(1024, 1024), Rows(2, 4), "added"),
    (Shape(1024, 512, True), Rows(2, 8), "carried"),
    (Shape(1024, 1024), Once(16, 32, 256, 2, 2, 4), "added"),
    (Shape(1024, 512, True), Once(16, 32, 256, 1, 4, 4), "carried"),
    (Shape(1024, 1024), Once(16, 16, 128, 1, 2, 4), "carried"),  # more products than chains
    (Shape(1024, 1024), Loop(16, 16, 256, 1, 4, 2), "carried"),
    (Shape(1024, 1024), Loop(64, 32, 256, 2, 3, 4, own=True), "added"),
    (Shape(1024, 1024, True), Loop(32, 32, 128, 1, 4, 4, own=True), "carried"),
    (Shape(1024, 1024), Bulk(64, 128, 64, 4, 4, 4, early=3), "added"),
    (Shape(1024, 1024, True), Bulk(128, 64, 64, 2, 3, 8, early=8), "carried"),
    (Shape(1024, 1024), Bulk(256, 128, 64, 1, 4, 8), "carried"),
    (Shape(1024, 1024, True), Bulk(64, 32, 128, 1, 3, 4, swap=False), "carried"),
    (Shape(1000, 1000), Rows(2, 4), "carried"),  # sizes that no tile divides
    (Shape(1000, 1000), Once(16, 32, 256, 2, 2, 4), "added"),
    (Shape(1000, 1000), Loop(32, 32, 128, 1, 4, 4, own=True), "carried"),
    (Shape(1000, 1000), Bulk(32, 64, 128, 3, 3, 4, early=2), "added"),
]


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> Compiling:
    return Compiling(monkeypatch)


def made(
    compiling: Compiling, shape: Shape, how: Recipe, end: str, tokens: int, bias: bool = False
) -> Compiled:
    """A product of x that is carried, or one that is added to the residual."""
    assert how is not None
    x, weight = meta(tokens, shape.inputs), meta(shape.outputs * (1 + shape.gated), shape.inputs)
    b = meta(len(weight)) if bias else None
    if end == "added":
        work = Work(x, weight, b, None, False, meta(tokens, shape.outputs), meta(shape.outputs))
    else:
        squares = meta(tokens, 128 if isinstance(how, Rows) else 32, dtype=torch.float32)
        work = Work(x, weight, b, Carried(x, squares, 1e-6, lambda norm: norm.x), shape.gated)
    Products(True).carry(work, how)
    return compiling.last()


def resources(ptx: str, tmp_path: Path) -> tuple[int, int]:
    """Registers of a thread, and bytes of them that are kept in memory."""
    (tmp_path / "kernel.ptx").write_text(ptx)
    said = subprocess.run(
        [PTXAS, "-v", "--gpu-name", "sm_90a", tmp_path / "kernel.ptx", "-o", tmp_path / "cubin"],
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    spilled, used = re.search(r"(\d+) bytes spill", said), re.search(r"Used (\d+) registers", said)
    assert spilled is not None
    assert used is not None
    return int(used[1]), int(spilled[1])


@pytest.mark.parametrize(("shape", "how", "end"), SMALL, ids=str)
def test_only_what_nobody_writes_is_read_before_the_wait(
    compiling: Compiling, shape: Shape, how: Recipe, end: str
) -> None:
    tokens = 1 if isinstance(how, Rows) else 8
    one = made(compiling, shape, how, end, tokens, bias=shape.outputs == 1000)
    read, written = one.early()
    assert one.starts_its_successor
    assert read <= {"weight", "bias", "gain"}
    assert not written
    asks = how.own if isinstance(how, Loop) else how.early > 0 if isinstance(how, Bulk) else True
    assert ("weight" in read) == asks
    before = one.ptx.partition("griddepcontrol.wait")[0]
    assert "griddepcontrol.launch_dependents" in before
    assert "cp.async" not in before
    if isinstance(how, Rows) and shape.outputs != 1000:
        # all of it, or as much as a thread can hold, 16 bytes at a time
        blocks = min(shape.inputs // 256, HELD // (how.each * (1 + shape.gated)))
        assert before.count("ld.global.v4") == blocks * how.each * (1 + shape.gated)
    if isinstance(how, Once):
        assert "st.shared" in before, "the weight is in shared memory before the wait"


@pytest.mark.skipif(not TIMED, reason="recipes were timed with Triton 3.6")
def test_a_row_needs_few_barriers(compiling: Compiling) -> None:
    for shape, how, end in SMALL[:3]:
        assert made(compiling, shape, how, end, 1).ptx.count("bar.sync") <= 4


def bulks() -> list[tuple[Shape, int, Bulk, str]]:
    return [(shape, how.tokens, how, end) for shape, how, end in SMALL if isinstance(how, Bulk)]


def check_bulk(one: Compiled, how: Bulk, gated: bool, tmp_path: Path) -> None:
    """The matrix units run on while a tile is waited for, and all tiles come by the copy engine."""
    _, _, after = one.ptx.partition("griddepcontrol.wait")
    loads = 3 if gated else 2
    assert after.count("cp.async.bulk.tensor.2d") == loads * how.stages
    assert "ld.shared::cluster" not in after
    rows = {int(n) for n in re.findall(r"wgmma.mma_async.sync.aligned.m64n(\d+)k16", after)}
    assert len(rows) == 1
    assert max(rows) <= (how.tokens if how.swap else how.outputs)
    assert f"wgmma.wait_group.sync.aligned {loads - 1};" in after
    assert "mma.sync" not in after
    assert one.shared <= SHARED
    _, spilled = resources(one.ptx, tmp_path)
    assert spilled == 0


@pytest.mark.skipif(not TIMED, reason="another compiler may pipeline in another way")
@pytest.mark.parametrize(("shape", "tokens", "how", "end"), bulks(), ids=str)
def test_tiles_come_by_the_copy_engine(
    compiling: Compiling, tmp_path: Path, shape: Shape, tokens: int, how: Bulk, end: str
) -> None:
    one = made(compiling, shape, how, end, tokens)
    check_bulk(one, how, shape.gated, tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not TIMED, reason="another compiler deals out registers in its way")
@pytest.mark.parametrize("tokens", [64, 256])
@pytest.mark.parametrize("shape", list(H200)[:10], ids=str)
def test_what_is_tried_fits_and_keeps_to_registers(
    compiling: Compiling, tmp_path: Path, shape: Shape, tokens: int
) -> None:
    end = "carried" if shape.gated or shape.outputs > shape.inputs else "added"
    for how in list(bulk(shape, tokens))[::3]:
        check_bulk(made(compiling, shape, how, end, tokens), how, shape.gated, tmp_path)


def tuned() -> list[tuple[Shape, int, Recipe]]:
    found = [
        (shape, tokens, how)
        for shape, ways in H200.items()
        for tokens, how in ways.items()
        if how is not None
    ]
    rules = [
        Shape(2048, 6144),
        Shape(6144, 2048, True),
        Shape(7168, 5120),
        Shape(25_600, 5120, True),
    ]
    found += [(s, t, how) for s in rules for t in (1, 16, 64) if (how := Recipes().of(s, t))]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "tokens", "how"), tuned(), ids=str)
def test_what_is_chosen_fits_and_keeps_to_registers(
    compiling: Compiling, tmp_path: Path, shape: Shape, tokens: int, how: Recipe
) -> None:
    end = "carried" if shape.gated or shape.outputs > shape.inputs else "added"
    one = made(compiling, shape, how, end, tokens)
    assert one.shared <= SHARED
    if not TIMED:
        pytest.skip("recipes were timed with Triton 3.6; its share of memory fits with this one")
    used, spilled = resources(one.ptx, tmp_path)
    assert spilled == 0
    if isinstance(how, Rows) and tokens == 1:
        assert used <= 128, "fewer programs fit onto a multiprocessor"
