"""A checkpoint of plain numbers, read in a storage format: a region is a slice of the whole."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_formats import FP8_TENSOR, fp8_block
from stored_toys import Sizes, Stored, family
from torch import Tensor, nn

from core.errors import UserError
from core.parallel import DictSource, EncodedSource, ParallelPlan, encoding, even

ROWS, COLUMNS = 37, 11


class Sums(Stored):
    """A weight stays as it is; a scale is the sum of its block, so that each number shows in it."""

    def encode(self, weight, format):
        found = {"weight": weight}
        for role, dims in format.roles.items():
            if role in ("weight", "bias"):
                continue
            x = weight
            for at, (dim, block) in enumerate(dims):
                if dim == "part":
                    x = x.sum()
                else:
                    x = torch.stack([part.sum(at) for part in x.split(block, at)], at)
            found[role] = x
        return found


def reader(kind, weight: Tensor) -> tuple[EncodedSource, dict[str, Tensor]]:
    formats = Sums(kind)
    plan = ParallelPlan.build(family("colwise"), Sizes(*weight.shape), formats=formats)
    whole = {f"w.{role}": x for role, x in formats.encode(weight, kind).items()}
    return EncodedSource(DictSource({"w.weight": weight}), plan), whole


def extents(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    start = draw(st.integers(0, size - 1))
    stop = draw(st.integers(start + 1, size))
    step = draw(st.integers(1, 3))
    return (start, stop) if step == 1 else (start, stop, step)


@settings(max_examples=150)
@given(st.data(), st.sampled_from([(1, 1), (2, 3), (5, 16), (16, 2)]), st.integers(1, 200))
def test_any_region_is_a_slice_of_what_is_encoded_whole(data, block, at_a_time) -> None:
    weight = torch.arange(ROWS * COLUMNS, dtype=torch.float32).reshape(ROWS, COLUMNS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "BLOCK", at_a_time)
        source, whole = reader(fp8_block(*block), weight)
    for name, x in whole.items():
        box = tuple(extents(data.draw, size) for size in x.shape)
        found = source.read(name, box)
        assert torch.equal(found, x[tuple(slice(*extent) for extent in box)])


def test_a_scale_of_the_whole_tensor_is_made_of_all_rows(monkeypatch) -> None:
    monkeypatch.setattr(encoding, "BLOCK", 1)
    weight = torch.randn(ROWS, COLUMNS)
    source, whole = reader(FP8_TENSOR, weight)
    assert torch.equal(source.read("w.weight_scale", ()), whole["w.weight_scale"])
    assert torch.equal(source.read("w.weight", ((3, 9), (0, 4))), weight[3:9, :4])


def test_a_weight_is_read_once_for_all_its_roles(monkeypatch) -> None:
    monkeypatch.setattr(encoding, "BLOCK", 32 * COLUMNS)
    source, whole = reader(fp8_block(4, 16), torch.randn(ROWS, COLUMNS))
    for name, x in whole.items():
        source.read(name, tuple((0, size) for size in x.shape))
    assert source.source.bytes_read == ROWS * COLUMNS * 4


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({}, "P9 checkpoint tensor w.weight is missing (for w.weight)"),
        ({"w.weight": torch.zeros(5, 6)}, "P9 checkpoint tensor w.weight is (5, 6), but w.weight"),
        (
            {"w.weight": torch.zeros(6, 5, dtype=torch.int8)},
            "P9 checkpoint tensor w.weight is of type I8, but w.weight needs plain floating point",
        ),
    ],
)
def test_a_weight_that_is_not_there_as_plain_numbers_is_refused(tensors, said) -> None:
    plan = ParallelPlan.build(family("colwise"), Sizes(6, 5), formats=Sums(fp8_block()))
    with pytest.raises(UserError) as caught:
        EncodedSource(DictSource(tensors), plan)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_numbers_that_no_scale_fits_are_refused_by_the_tensor_s_name(wrong) -> None:
    weight = torch.zeros(6, 5)
    weight[4, 2] = wrong
    source, _ = reader(fp8_block(), weight)
    with pytest.raises(UserError, match=r"w\.weight holds numbers that are not finite"):
        source.read("w.weight", ((0, 1), (0, 5)))


def test_a_weight_that_is_turned_around_on_disk_is_refused() -> None:
    turned = SimpleNamespace(
        model=lambda c: nn.ModuleDict({"w": nn.Linear(c.other, c.cut, bias=False)}),
        axes={"a": even("cut")},
        plan={"w": {"strategy": "colwise:a", "perm": [1, 0]}},
    )
    plan = ParallelPlan.build(turned, Sizes(6, 5), formats=Sums(fp8_block()))
    with pytest.raises(UserError, match="w cannot be quantized while it is read"):
        EncodedSource(DictSource({"w.weight": torch.zeros(5, 6)}), plan)


def test_the_plain_index_is_what_such_a_checkpoint_holds() -> None:
    parts = ("gate", "up")
    plan = ParallelPlan.build(
        family("colwise", parts=parts), Sizes(6, 5), formats=Sums(fp8_block(2, 5))
    )
    assert EncodedSource.plain(plan, "BF16") == {f"{p}.weight": ((6, 5), "BF16") for p in parts}


def test_what_encode_gives_must_be_of_the_parameter_s_type() -> None:
    formats = Sums(fp8_block())
    formats.encode = lambda weight, format: {"weight": weight.to(torch.int8)}
    plan = ParallelPlan.build(family("colwise"), Sizes(6, 5), formats=formats)
    source = EncodedSource(DictSource({"w.weight": torch.zeros(6, 5)}), plan)
    with pytest.raises(AssertionError, match=r"Sums\.encode gives weight as torch\.int8"):
        source.read("w.weight", ((0, 1), (0, 5)))
