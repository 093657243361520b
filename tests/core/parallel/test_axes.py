"""Partitions are covering, disjoint, balanced, in whole units; heads keep their own kv head."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core import registry
from core.parallel import Infeasible, Partition, Partitioner
from core.parallel.axes import feasible, partition, stored, total

NO_BLOCKS = frozenset[int]()


def partitioner(kind: str, *counts: int, **options: object) -> Partitioner:
    found = registry.partitions.get(kind)
    return found(counts, found.Options(**options))


def elements(cut: Partition, rank: int) -> list[int]:
    return [i for start, stop in cut.spans[rank] for i in range(start, stop)]


@settings(max_examples=150)
@given(st.integers(1, 500), st.integers(1, 9), st.sampled_from([1, 2, 8, 16, 128]))
def test_even_covers_in_order_in_whole_units_whose_counts_differ_by_one(
    size: int, ranks: int, unit: int
) -> None:
    (cut,) = partition(partitioner("even", size, unit=unit), ranks, [NO_BLOCKS])
    assert [i for rank in range(ranks) for i in elements(cut, rank)] == list(range(size))
    assert all(start % unit == 0 for spans in cut.spans for start, _ in spans)
    units = [-(-total(spans) // unit) for spans in cut.spans]
    assert max(units) - min(units) <= 1
    assert cut.local == tuple(map(total, cut.spans))


@settings(max_examples=150)
@given(
    st.integers(1, 500),
    st.integers(1, 9),
    st.sampled_from([1, 3, 64]),
    st.sampled_from([1, 16]),
)
def test_vocab_pads_behind_the_last_row_only(size: int, ranks: int, block: int, unit: int) -> None:
    (cut,) = partition(partitioner("vocab", size, unit=unit), ranks, [frozenset({block})])
    assert len(set(cut.local)) == 1
    assert cut.local[0] % unit == 0 if ranks > 1 else cut.local == (size,)
    gathered: list[int | None] = []
    for rank in range(ranks):
        real = elements(cut, rank)
        gathered += [*real, *[None] * (cut.local[rank] - len(real))]
    assert gathered[:size] == list(range(size))
    assert all(row is None for row in gathered[size:])


@settings(max_examples=200)
@given(st.integers(1, 12), st.integers(1, 8), st.integers(1, 16), st.sampled_from([1, 4]))
def test_gqa_keeps_each_query_head_with_its_kv_head(
    kv_heads: int, group: int, ranks: int, unit: int
) -> None:
    heads = kv_heads * group
    cutter = partitioner("gqa", heads, kv_heads, unit=unit)
    if ranks > heads:
        with pytest.raises(Infeasible, match=f"tensor={ranks} leaves a rank with nothing"):
            partition(cutter, ranks, [NO_BLOCKS, NO_BLOCKS])
        return
    q, kv = partition(cutter, ranks, [NO_BLOCKS, NO_BLOCKS])
    assert sorted(i for rank in range(ranks) for i in elements(q, rank)) == list(
        range(heads * unit)
    )
    assert {i for rank in range(ranks) for i in elements(kv, rank)} == set(range(kv_heads * unit))
    for rank in range(ranks):
        mine = [i // unit for i in elements(q, rank)[::unit]]
        held = [i // unit for i in elements(kv, rank)[::unit]]
        assert (len(mine), len(held)) == (q.count(rank), kv.count(rank))
        assert len(mine) % len(held) == 0
        share = len(mine) // len(held)
        assert all(head // group == held[i // share] for i, head in enumerate(mine))


def test_14_query_heads_over_2_kv_heads_at_3_ranks() -> None:
    q, kv = partition(partitioner("gqa", 14, 2, unit=64), 3, [NO_BLOCKS, NO_BLOCKS])
    assert [q.count(rank) for rank in range(3)] == [4, 3, 7]
    assert [kv.count(rank) for rank in range(3)] == [1, 1, 1]


def test_whole_blocks_are_dealt_out_without_padding() -> None:
    (cut,) = partition(partitioner("even", 9728), 8, [frozenset({128})])
    assert [length // 128 for length in cut.local] == [10, 10, 10, 10, 9, 9, 9, 9]


def test_ranks_that_share_a_block_when_there_are_too_few() -> None:
    (cut,) = partition(partitioner("even", 128), 4, [frozenset({128})])
    assert cut.local == (32, 32, 32, 32)


def test_a_cut_through_a_block_is_infeasible() -> None:
    cutter = partitioner("even", 384)
    with pytest.raises(Infeasible, match=r"cut \[77, 154\), which goes through .* block of 128"):
        partition(cutter, 5, [frozenset({128})])
    # at 4 ranks there are fewer blocks than ranks, and 96 divides no block boundary
    assert feasible(cutter, [frozenset({128})])[:4] == [1, 2, 3, 6]


@settings(max_examples=150)
@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 8),
    st.sampled_from([2, 4, 8]),
    st.sampled_from([1, 4, 8, 16, 32]),
)
def test_gqa_with_blocks_never_cuts_through_one(
    kv_heads: int, group: int, ranks: int, unit: int, block: int
) -> None:
    blocks = frozenset({block})
    cutter = partitioner("gqa", kv_heads * group, kv_heads, unit=unit)
    try:
        cuts = partition(cutter, ranks, [blocks, blocks])
    except Infeasible:
        return
    for cut in cuts:
        for spans in cut.spans:
            assert all(stored(span, cut.size, block) is not None for span in spans)
        assert all(cut.local)


@pytest.mark.parametrize(
    ("options", "dealt"),
    [
        ({}, [[0, 1, 2], [3, 4]]),
        ({"order": "round_robin"}, [[0, 2, 4], [1, 3]]),
        ({"slots": ((4, 0, 1), (2, 3, 4))}, [[4, 0, 1], [2, 3, 4]]),
    ],
)
def test_experts_in_order_round_robin_or_by_map(
    options: dict[str, object], dealt: list[list[int]]
) -> None:
    (cut,) = partition(partitioner("experts", 5, **options), 2, [NO_BLOCKS])
    assert [elements(cut, rank) for rank in range(2)] == dealt


def test_an_expert_map_must_hold_every_expert() -> None:
    cutter = partitioner("experts", 3, slots=((0,), (1,)))
    with pytest.raises(Infeasible, match="its slots do not hold each of 3 experts"):
        partition(cutter, 2, [NO_BLOCKS])
    with pytest.raises(Infeasible, match="tensor=3, but its slots are for 2 ranks"):
        partition(cutter, 3, [NO_BLOCKS])


def test_declaring_and_matching_need_no_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys; import core.parallel.axes, core.parallel.recipe, core.parallel.matching, "
        "core.parallel.compiler, core.parallel.checks, core.parallel.formats; "
        "from core.parallel import gqa, Sharding; import models.qwen3.plan; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
