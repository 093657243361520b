"""Regions of mapped files and made-up regions, against whole tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from core.errors import UserError
from core.parallel.recipe import Box, slices
from plugins.sources import dummy
from plugins.sources.dummy import DummySource
from plugins.sources.mmap import MmapSource

BOXES: list[Box] = [
    ((0, 6), (0, 5)),
    ((2, 4), (0, 5)),
    ((0, 6), (1, 3)),
    ((1, 6, 2), (2, 5)),
    ((3, 3), (0, 5)),
]


@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_a_region_of_a_mapped_file(box: Box, dtype: torch.dtype, tmp_path: Path) -> None:
    whole = torch.randn(6, 5).to(dtype)
    save_file({"a": whole}, tmp_path / "model.safetensors")
    with MmapSource.open(tmp_path, {}) as source:
        found = source.read("a", box)
        expected = whole[slices(box)]
        assert found.shape == expected.shape
        assert torch.equal(found.float(), expected.float())
        assert source.bytes_read == expected.numel() * expected.element_size()


def test_one_element_with_and_without_a_dim(tmp_path: Path) -> None:
    save_file({"a": torch.tensor(3.0), "b": torch.tensor([4.0])}, tmp_path / "x.safetensors")
    with MmapSource.open(tmp_path, {}) as source:
        assert source.read("a", ()).item() == 3.0
        assert source.read("b", ()).item() == 4.0
        assert source.bytes_read == 8


def test_shards_are_opened_when_they_are_read(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "one.safetensors")
    save_file({"b": torch.ones(2)}, tmp_path / "two.safetensors")
    with MmapSource.open(tmp_path, {}) as source:
        assert set(source.index()) == {"a", "b"}
        (tmp_path / "one.safetensors").unlink()
        assert source.read("b", ((0, 2),)).tolist() == [1.0, 1.0]
        with pytest.raises(UserError, match=r"one.safetensors: tensor 'a' cannot be read"):
            source.read("a", ((0, 2),))


def test_it_needs_a_checkpoint() -> None:
    with pytest.raises(UserError, match=r"The source mmap needs a checkpoint: set model.path"):
        MmapSource.open(None, {})


EXPECTED = {
    "w.weight": ((70, 33), "F32"),
    "n.weight": ((65,), "F32"),
    "n.bias": ((65,), "F32"),
    "e.weight": ((3, 5, 7), "BF16"),
    "s": ((), "F64"),
}


@st.composite
def regions(draw: st.DrawFn) -> tuple[str, Box]:
    name = draw(st.sampled_from(sorted(EXPECTED)))
    box = []
    for size in EXPECTED[name][0]:
        start = draw(st.integers(0, size))
        stop = draw(st.integers(start, size))
        step = draw(st.sampled_from([None, 1, 2, 3]))
        box.append((start, stop) if step is None else (start, stop, step))
    return name, tuple(box)


@settings(max_examples=100)
@given(regions())
def test_a_made_up_region_is_a_region_of_the_whole(region: tuple[str, Box]) -> None:
    name, box = region
    source = DummySource.open(None, EXPECTED, seed=7)
    whole = source.read(name, tuple((0, n) for n in EXPECTED[name][0]))
    found = source.read(name, box)
    assert found.dtype == whole.dtype
    assert torch.equal(found, whole[slices(box)])
    out = torch.full(found.shape, 9.0, dtype=found.dtype)
    dummy.BLOCK, usual = 11, dummy.BLOCK  # a row or a few at a time
    try:
        source.read_into(name, box, out)
    finally:
        dummy.BLOCK = usual
    assert torch.equal(out, found)


def test_made_up_values_depend_on_seed_and_name_and_have_the_planned_spread() -> None:
    expected = {"a.weight": ((300, 100), "F32"), "b.weight": ((300, 100), "F32")}
    everything = ((0, 300), (0, 100))
    a = DummySource.open(None, expected, seed=1).read("a.weight", everything)
    assert torch.equal(a, DummySource.open(None, expected, seed=1).read("a.weight", everything))
    assert not torch.equal(a, DummySource.open(None, expected, seed=2).read("a.weight", everything))
    assert not torch.equal(a, DummySource.open(None, expected, seed=1).read("b.weight", everything))
    assert abs(a.mean().item()) < 1e-3
    assert a.std().item() == pytest.approx(0.02, rel=0.02)
    assert abs(torch.corrcoef(a[:, :4].T) - torch.eye(4)).max() < 0.2


def test_made_up_norms_lie_around_one_and_biases_around_zero() -> None:
    source = DummySource({"n.weight": ((4000,), "F32"), "n.bias": ((4000,), "F32")}, std=0.5)
    norm, bias = source.read("n.weight", ((0, 4000),)), source.read("n.bias", ((0, 4000),))
    assert norm.mean().item() == pytest.approx(1, abs=0.01)
    assert norm.std().item() == pytest.approx(0.1, rel=0.1)
    assert bias.mean().item() == pytest.approx(0, abs=0.05)
    assert bias.std().item() == pytest.approx(0.5, rel=0.1)


def test_it_makes_up_floating_point_numbers_only() -> None:
    with pytest.raises(UserError, match=r"and q.qweight is of type I32. Use a real checkpoint"):
        DummySource({"q.qweight": ((2,), "I32")})
