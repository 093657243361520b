"""What is drawn of a plan is what the recipe reads, element by element."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import core.plugins
from core.parallel import ParallelPlan
from core.parallel.recipe import Box, slices
from plugins.apps.plan.drawing import Scale, picture, weave
from plugins.apps.plan.fusion import fusions
from plugins.apps.plan.regions import Region, TensorMap, flat_shape, regions, runs, tensor_maps
from tests.core.parallel.toys import Config, toy, toy_plan
from tests.plugins.apps.plans import read_by, toy_plans

few = settings(max_examples=60, deadline=None)


@pytest.fixture(scope="module", autouse=True)
def _plugins() -> None:
    core.plugins.load()


def mask(found: tuple[Region, ...], flat: tuple[int, int], ranks: int) -> np.ndarray:
    """[ranks, rows, columns]; fails where two regions overlap."""
    drawn = np.zeros((ranks, *flat), bool)
    covered = np.zeros(flat, bool)
    for region in found:
        here = slice(*region.rows), slice(*region.columns)
        assert 0 <= region.rows[0] < region.rows[1] <= flat[0]
        assert 0 <= region.columns[0] < region.columns[1] <= flat[1]
        assert not covered[here].any()
        covered[here] = True
        drawn[(list(region.ranks), *here)] = True
    return drawn


@few
@given(toy_plans(), st.booleans())
def test_regions_are_what_the_recipe_reads(plan: ParallelPlan, fold: bool) -> None:
    index = plan.expected_index()
    wanted = read_by(plan, index)
    maps = tensor_maps(plan, index, fold)

    assert sorted(name for tensor in maps for name in tensor.names) == sorted(index)
    for tensor in maps:
        drawn = mask(tensor.regions, tensor.flat, plan.tensor)
        for name in tensor.names:
            assert (drawn == wanted[name].reshape(drawn.shape)).all(), name


@few
@given(toy_plans(), st.sampled_from([40.0, 252.0]))
def test_the_area_of_a_rank_is_its_share_of_the_tensor(plan: ParallelPlan, pixels: float) -> None:
    index = plan.expected_index()
    wanted = read_by(plan, index)
    maps = tensor_maps(plan, index)
    scale = Scale.fitting(maps, pixels)

    for tensor in maps:
        drawn = picture(tensor, scale, plan.tensor)
        unit = math.prod(tensor.flat) / (drawn.width * drawn.height)  # elements in a pixel
        for rank in range(plan.tensor):
            area = sum(t.width * t.height for t in drawn.tiles if rank in t.ranks)
            assert area * unit == pytest.approx(wanted[tensor.names[0]][rank].sum())
        rows, columns = tensor.flat
        for tile, region in zip(drawn.tiles, tensor.regions, strict=True):
            across = np.array([tile.x, tile.x + tile.width]) * columns / drawn.width
            down = np.array([tile.y, tile.y + tile.height]) * rows / drawn.height
            assert (*across, *down) == pytest.approx((*region.columns, *region.rows))


@few
@given(toy_plans())
def test_fused_parts_are_as_high_where_they_land_as_where_they_are_read(
    plan: ParallelPlan,
) -> None:
    index = plan.expected_index()
    for fusion in fusions(plan, index):
        drawn = weave(fusion, 300.0)
        pixel = sum(bar.height for bar in drawn.ranks) / sum(map(fusion.size, range(plan.tensor)))
        for ribbon, landing in zip(drawn.ribbons, fusion.landings, strict=True):
            right = ribbon.right[1] - ribbon.right[0]
            assert right == pytest.approx((landing.span[1] - landing.span[0]) * pixel)
            if landing.source is not None and landing.stride == 1:
                assert ribbon.left[1] - ribbon.left[0] == pytest.approx(right)
        for rank, bar in enumerate(drawn.ranks):
            parts = sorted(r.right for r in drawn.ribbons if r.rank == rank)
            if not parts:
                assert bar.height == 0
                continue
            assert parts[0][0] == pytest.approx(bar.y)
            assert [b for _, b in parts[:-1]] == pytest.approx([a for a, _ in parts[1:]])
            assert parts[-1][1] == pytest.approx(bar.y + bar.height)
        bars = [*drawn.sources, *drawn.ranks]
        assert max(bar.y + bar.height for bar in bars) <= 300.0 + 1e-6


@st.composite
def boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], list[list[Box]]]:
    """A tensor of up to four dims, and what three ranks read of it, with steps."""
    shape = tuple(draw(st.lists(st.integers(1, 5), max_size=4)))

    def box() -> Box:
        ranges = []
        for size in shape:
            start = draw(st.integers(0, size - 1))
            stop = draw(st.integers(start, size))
            ranges.append((start, stop, *draw(st.sampled_from([(), (1,), (2,), (3,)]))))
        return tuple(ranges)

    return shape, [[box() for _ in range(draw(st.integers(0, 3)))] for _ in range(3)]


@settings(max_examples=150, deadline=None)
@given(boxes())
def test_any_boxes_of_any_tensor_are_cut_right(
    given_boxes: tuple[tuple[int, ...], list[list[Box]]],
) -> None:
    shape, by_rank = given_boxes
    wanted = np.zeros((3, *shape), bool)
    for rank, own in enumerate(by_rank):
        for box in own:
            wanted[(rank, *slices(box))] = True

    drawn = mask(regions(shape, by_rank), flat_shape(shape), 3)

    assert (drawn == wanted.reshape(drawn.shape)).all()


def test_rows_that_alternate_on_disk_are_one_region_of_a_rank_that_reads_both() -> None:
    assert runs([(0, 99, 2), (1, 100, 2)]) == [(0, 100)]


def drawn_of(plan: ParallelPlan, name: str) -> TensorMap:
    (found,) = [t for t in tensor_maps(plan, plan.expected_index()) if name in t.name]
    return found


def test_two_heads_for_four_ranks_are_shared_by_two_ranks_each() -> None:
    found = drawn_of(toy_plan(4), "k_proj.weight")  # two heads of eight rows

    assert [(r.rows, r.ranks) for r in found.regions] == [((0, 8), (0, 1)), ((8, 16), (2, 3))]


def test_three_ranks_get_as_many_of_eight_heads_as_can_be() -> None:
    config = Config(num_attention_heads=16, num_key_value_heads=8)
    found = drawn_of(toy_plan(3, config), "v_proj.weight")

    assert [(r.rows, r.ranks) for r in found.regions] == [
        ((0, 24), (0,)),
        ((24, 48), (1,)),
        ((48, 64), (2,)),
    ]


def test_a_norm_is_one_region_of_every_rank() -> None:
    found = drawn_of(toy_plan(3), "input_layernorm")

    assert found.regions == (Region((0, 32), (0, 1), (0, 1, 2)),)
    assert found.names == tuple(f"model.layers.{i}.input_layernorm.weight" for i in (0, 1))


def test_a_tensor_that_nobody_reads_is_shown_without_regions() -> None:
    plan = ParallelPlan.build(toy(ignore=("extra",)), Config(), 2, replicate_limit=1.0)
    maps = tensor_maps(plan, {**plan.expected_index(), "extra": ((3,), "F32")})

    assert [t.name for t in maps if not t.regions] == ["extra"]


def test_small_models_are_drawn_to_one_scale_and_large_ones_by_the_cube_root() -> None:
    def tensor(*shape: int) -> TensorMap:
        return TensorMap("x", ("x",), shape, "F32", ())

    small = Scale.fitting([tensor(32, 2), tensor(8, 8)], 100.0)
    large = Scale.fitting([tensor(8000, 8)], 100.0)

    assert [small(32), small(16)] == [100.0, 50.0]
    assert [large(8000), large(1000)] == pytest.approx([100.0, 50.0])
    assert "one scale" in small.words
    assert "cube root" in large.words
