"""Regions read at their place in a file, against whole tensors; and files that change under way."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from core.errors import UserError
from core.parallel.recipe import Box, extent_of, slices
from plugins.sources import pread
from plugins.sources.pread import PreadSource

DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool]
SHAPES = {"a": (9, 7), "b": (3, 5, 4), "c": (11,), "d": (), "e": (2, 3, 4, 5), "f": (0, 4)}


def bits(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x.flatten()]).view(torch.uint8) if x.numel() else torch.empty(0)


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    return {
        f"{name}{i}": (torch.randn(shape, generator=random) * 5).to(dtype)
        for name, shape in SHAPES.items()
        for i, dtype in enumerate(DTYPES)
    }


@pytest.fixture(scope="module")
def source(tensors, tmp_path_factory: pytest.TempPathFactory) -> PreadSource:
    path = tmp_path_factory.mktemp("stored")
    save_file(tensors, path / "model.safetensors")
    return PreadSource.open(path, {})


@st.composite
def regions(draw: st.DrawFn) -> tuple[str, Box]:
    name = draw(st.sampled_from(sorted(SHAPES)))
    box = []
    for size in SHAPES[name]:
        start = draw(st.integers(0, size))
        stop = draw(st.integers(start, size))
        step = draw(st.sampled_from([None, None, 1, 2, 3]))
        whole = draw(st.booleans())
        box.append((0, size) if whole else (start, stop) if step is None else (start, stop, step))
    return f"{name}{draw(st.integers(0, len(DTYPES) - 1))}", tuple(box)


@settings(max_examples=200)
@given(regions())
def test_any_region_is_that_of_the_whole_tensor(tensors, source, region: tuple[str, Box]) -> None:
    name, box = region
    pread.SCRATCH, usual = 40, pread.SCRATCH  # a few rows at a time
    try:
        before = source.bytes_read
        found = source.read(name, box)
    finally:
        pread.SCRATCH = usual
    expected = tensors[name][slices(box)]
    assert found.shape == expected.shape == extent_of(box)
    assert torch.equal(bits(found), bits(expected))
    assert source.bytes_read - before == expected.numel() * expected.element_size()


def test_the_whole_of_one_element_needs_no_box(tensors, source) -> None:
    assert source.read("d0", ()).item() == tensors["d0"].item()
    assert source.index()["b1"] == ((3, 5, 4), "BF16")


def test_several_threads_read_at_once(tensors, source) -> None:
    jobs = [(n, tuple((0, s) for s in t.shape)) for n, t in tensors.items()] * 20
    jobs += [("a0", ((0, 9), (2, 5)))] * 50
    before = source.bytes_read
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda job: source.read(*job), jobs))
    for (name, box), region in zip(jobs, found, strict=True):
        assert torch.equal(bits(region), bits(tensors[name][slices(box)]))
    assert source.bytes_read - before == sum(r.numel() * r.element_size() for r in found)


def test_a_file_that_became_shorter_is_told(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(100, 10)}, file)
    with PreadSource.open(tmp_path, {}) as source:
        os.truncate(file, file.stat().st_size - 8)
        assert not source.read("a", ((0, 90), (0, 10))).any()
        with pytest.raises(
            UserError, match=r"model.safetensors: tensor 'a' cannot be read: it ends"
        ):
            source.read("a", ((90, 100), (0, 10)))


def test_a_file_that_is_gone_is_told_and_closing_leaves_none_open(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "one.safetensors")
    save_file({"b": torch.ones(2)}, tmp_path / "two.safetensors")
    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    with PreadSource.open(tmp_path, {}) as source:
        (tmp_path / "one.safetensors").unlink()
        assert source.read("b", ((0, 2),)).tolist() == [1.0, 1.0]
        with pytest.raises(UserError, match=r"one.safetensors: tensor 'a' cannot be read"):
            source.read("a", ((0, 2),))
    if before:
        assert len(os.listdir("/proc/self/fd")) == before


def test_it_needs_a_checkpoint() -> None:
    with pytest.raises(UserError, match=r"The source pread needs a checkpoint: set model.path"):
        PreadSource.open(None, {})
