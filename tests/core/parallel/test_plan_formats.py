"""Quantized storage composes with cuts: right for every size and block, or refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from stored_formats import FP8_CHAN, FP8_TENSOR, awq, fp8_block, gptq
from stored_toys import Sizes, Stored, expand, family, shards
from torch import Tensor

from core import registry
from core.errors import UserError
from core.parallel import (
    Format,
    ParallelPlan,
    Partition,
    Partitioner,
    Quantization,
    axis,
    formats_of,
)


@settings(max_examples=120)
@given(
    st.integers(1, 90),
    st.integers(1, 30),
    st.integers(2, 12),
    st.integers(1, 5),
    st.integers(1, 12),
    st.sampled_from(["colwise", "rowwise"]),
)
def test_an_fp8_shard_times_its_scales_is_a_slice_of_the_whole(
    cut: int, other: int, block: int, ranks: int, unit: int, style: str
) -> None:
    formats = Stored(fp8_block(block, block))
    refusal = None
    try:
        plan = ParallelPlan.build(family(style, unit), Sizes(cut, other), ranks, formats=formats)
    except UserError as error:
        refusal = str(error)
    if refusal is not None:
        assert refusal.startswith("P6")
        return
    rows, columns = (cut, other) if style == "colwise" else (other, cut)
    weight = torch.randn(rows, columns, dtype=torch.float64)
    scale = torch.rand(-(-rows // block), -(-columns // block), dtype=torch.float64)
    whole = weight * expand(scale, rows, columns, block)
    for rank, params in enumerate(shards(plan, {"w.weight": weight, "w.weight_scale_inv": scale})):
        local = params["w.weight"]
        if not local.numel():
            continue
        ((start, stop),) = plan.cuts["a"].spans[rank]
        expected = whole[start:stop] if style == "colwise" else whole[:, start:stop]
        found = local * expand(params["w.weight_scale_inv"], *local.shape, block)
        assert torch.equal(found, expected)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
def test_qwen3_4b_s_9728_columns_in_blocks_of_128_work_at_any_size(ranks: int) -> None:
    formats = Stored(fp8_block())
    plan = ParallelPlan.build(family("colwise"), Sizes(9728, 4), ranks, formats=formats)
    assert all(length % 128 == 0 for length in plan.cuts["a"].local)
    assert plan.feasible()[:16] == list(range(1, 17))


def test_packed_fp8_parts_end_on_a_block() -> None:
    with pytest.raises(UserError) as caught:
        ParallelPlan.build(
            family("colwise", parts=("gate", "up")), Sizes(128, 128), 2, formats=Stored(fp8_block())
        )
    assert str(caught.value) == (
        "P7 the gate part of w.weight_scale_inv: 64 on rank 0 is not a multiple of the storage "
        "block of 128, so the next part would start inside its block. Choose another tensor size, "
        "or keep the parts in modules of their own. (1 more like it)"
    )
    # the same cut of one part alone is fine: both ranks keep the block's scale
    ParallelPlan.build(family("colwise"), Sizes(128, 128), 2, formats=Stored(fp8_block()))


def test_a_partitioner_that_does_not_heed_blocks_is_told() -> None:
    class Halves(Partitioner):
        def cut(self, ranks: int, grain: object) -> tuple[Partition, ...]:
            return (Partition(200, (((0, 100),), ((100, 200),)), (100, 100)),)

    one = family("colwise")
    one.axes = {"a": axis("halves", "cut")}
    before = registry.registries.snapshot()
    try:
        registry.partitions.register("halves", Halves)
        with pytest.raises(UserError) as caught:
            ParallelPlan.build(one, Sizes(200, 128), 2, formats=Stored(fp8_block(64, 64)))
    finally:
        registry.registries.restore(before)
    assert str(caught.value) == (
        "P7 w.weight_scale_inv: rank 0 of axis 'a' is [0, 100), a cut inside a storage block of "
        "64. Choose another tensor size, or replicate this weight. (1 more like it)"
    )


def test_feasible_sizes_leave_out_packed_parts_that_would_share_a_block() -> None:
    formats = Stored(fp8_block())
    family_of_two = family("colwise", parts=("gate", "up"))
    plan = ParallelPlan.build(family_of_two, Sizes(256, 128), 1, formats=formats)
    assert plan.feasible() == [1, 2]


def test_a_tensor_scale_has_one_slot_for_each_part() -> None:
    formats = Stored(FP8_TENSOR)
    plan = ParallelPlan.build(
        family("colwise", parts=("gate", "up")), Sizes(6, 4), 2, formats=formats
    )
    tensors = {f"{part}.weight": torch.randn(6, 4, dtype=torch.float64) for part in ("gate", "up")}
    tensors["gate.weight_scale"] = torch.tensor(2.0, dtype=torch.float64)
    tensors["up.weight_scale"] = torch.tensor([3.0], dtype=torch.float64)
    for params in shards(plan, tensors):
        assert params["w.weight_scale"].tolist() == [2.0, 3.0]


def test_one_tensor_scale_of_parts_fused_on_disk_fills_every_slot() -> None:
    both = family("colwise", parts=("gate", "up"))
    parts = [{"source": name, "strategy": "colwise:a"} for name in ("gate", "up")]
    both.plan = {
        "w": {"strategy": "packed", "on_disk": "fused", "source": "gate_up", "parts": parts}
    }
    plan = ParallelPlan.build(both, Sizes(6, 4), 2, formats=Stored(FP8_TENSOR))
    weight = torch.randn(12, 4, dtype=torch.float64)
    tensors = {"gate_up.weight": weight, "gate_up.weight_scale": torch.tensor(5.0).double()}
    for rank, params in enumerate(shards(plan, tensors)):
        assert params["w.weight_scale"].tolist() == [5.0, 5.0]
        rows = slice(3 * rank, 3 * rank + 3)
        assert torch.equal(params["w.weight"], torch.cat([weight[:6][rows], weight[6:][rows]]))


def test_channel_scales_follow_the_output() -> None:
    for style in ("colwise", "rowwise"):
        plan = ParallelPlan.build(family(style), Sizes(6, 4), 2, formats=Stored(FP8_CHAN))
        rows = 6 if style == "colwise" else 4
        weight = torch.randn(rows, 10 - rows, dtype=torch.float64)
        scale = torch.rand(rows, dtype=torch.float64)
        found = shards(plan, {"w.weight": weight, "w.weight_scale": scale})
        expected = scale[3:] if style == "colwise" else scale
        assert torch.equal(found[1]["w.weight_scale"], expected)


def packed(values: Tensor, dim: int) -> Tensor:
    """Eight 4-bit values to one number, along `dim`."""
    moved = values.movedim(dim, -1)
    moved = moved.reshape(*moved.shape[:-1], -1, 8)
    return (moved << (4 * torch.arange(8))).sum(-1).movedim(-1, dim).double()


@settings(max_examples=60)
@given(
    st.sampled_from([gptq, awq]),
    st.sampled_from(["colwise", "rowwise"]),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 5),
)
def test_packing_a_shard_is_cutting_the_pack(
    kind: Callable[..., Format], style: str, out_units: int, in_units: int, ranks: int
) -> None:
    group = 16
    n_out, n_in = out_units * 16, in_units * group * 2
    assume((n_out // 8 if style == "colwise" else n_in // group) >= ranks)
    values, zeros = (
        torch.randint(0, 16, (n_in, n_out)),
        torch.randint(0, 16, (n_in // group, n_out)),
    )
    scales = torch.rand(n_in // group, n_out, dtype=torch.float64)
    weight_dim = 0 if kind is gptq else 1
    tensors = {
        "w.qweight": packed(values, weight_dim),
        "w.qzeros": packed(zeros, 1),
        "w.scales": scales,
    }
    if kind is gptq:
        tensors["w.g_idx"] = (torch.arange(n_in) // group).double()
    config = Sizes(n_out, n_in) if style == "colwise" else Sizes(n_in, n_out)
    plan = ParallelPlan.build(family(style), config, ranks, formats=Stored(kind(4, group)))
    for rank, params in enumerate(shards(plan, tensors)):
        ((a, b),) = plan.cuts["a"].spans[rank]
        all_of = slice(None)
        rows, groups, columns = (
            (all_of, all_of, slice(a, b))
            if style == "colwise"
            else (slice(a, b), slice(a // group, b // group), all_of)
        )
        assert torch.equal(params["w.qweight"], packed(values[rows, columns], weight_dim))
        assert torch.equal(params["w.qzeros"], packed(zeros[groups, columns], 1))
        assert torch.equal(params["w.scales"], scales[groups, columns])


def test_act_order_cannot_be_cut_by_input() -> None:
    formats = Stored(gptq(4, 16, desc_act=True))
    ParallelPlan.build(family("colwise"), Sizes(32, 32), 2, formats=formats)
    with pytest.raises(UserError) as caught:
        ParallelPlan.build(family("rowwise"), Sizes(32, 32), 2, formats=formats)
    assert str(caught.value) == (
        "P5 w: rowwise does not fit. gptq-4bit-g16-act-order cannot be cut on 'in': its act-order "
        "groups (desc_act) are scattered over the whole input."
    )


def test_packed_parts_share_one_format() -> None:
    formats = Stored(fp8_block(), dense=("up",))
    with pytest.raises(UserError) as caught:
        ParallelPlan.build(
            family("colwise", parts=("gate", "up")), Sizes(256, 128), 1, formats=formats
        )
    assert str(caught.value) == (
        "P5 w: packed does not fit. Its parts are stored as dense, fp8-block-128x128; give those "
        "apart modules of their own."
    )


def test_parts_that_alternate_on_disk_have_no_blocks_of_their_own() -> None:
    both = family("colwise", parts=("gate", "up"))
    parts = [{"source": name, "strategy": "colwise:a"} for name in ("gate", "up")]
    both.plan = {
        "w": {"strategy": "packed", "on_disk": "interleaved:2", "source": "x", "parts": parts}
    }
    with pytest.raises(UserError) as caught:
        ParallelPlan.build(both, Sizes(256, 128), 1, formats=Stored(fp8_block()))
    assert str(caught.value).startswith(
        "P7 w.weight_scale_inv: parts that alternate on disk share every storage block of 128."
    )


class Known(Quantization):
    @classmethod
    def matches(cls, config: Mapping[str, Any]) -> bool:
        return config.get("quant_method") == "known"


def test_a_quantized_checkpoint_needs_a_plugin_for_its_format() -> None:
    before = registry.registries.snapshot()
    registry.registries.forget_plugins()
    try:
        registry.quantization.register("known", Known)
        assert formats_of({"hidden_size": 3}) is None
        assert isinstance(formats_of({"quantization_config": {"quant_method": "known"}}), Known)
        with pytest.raises(UserError) as caught:
            formats_of({"quantization_config": {"quant_method": "gptq", "bits": 4}})
        assert str(caught.value) == (
            "The checkpoint is quantized (quantization_config: gptq) and no plugin reads that "
            "format. Registered: known. Use an unquantized checkpoint, or install a plugin."
        )
        registry.quantization.register("rival", type("Rival", (Known,), {}))
        with pytest.raises(UserError, match="is claimed by known, rival; switch all but one"):
            formats_of({"quantization_config": {"quant_method": "known"}})
    finally:
        registry.registries.restore(before)
