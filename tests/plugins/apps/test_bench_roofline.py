"""The floor of a workload, held against figures worked out for two models on one machine."""

from __future__ import annotations

import pytest

from plugins.apps.bench.roofline import Machine, ModelSize, decode_step, floor, prompt_pass
from plugins.apps.bench.workloads import workload

MACHINE = Machine(bandwidth=4.3e12, peak=787e12)
VOCABULARY = 151936


def qwen3(layers: int, hidden: int, heads: int, width: int, ranks: int = 1) -> ModelSize:
    projections = hidden * (heads + 2 * 8) * 128 + heads * 128 * hidden + 3 * hidden * width
    return ModelSize(layers, heads, 8, 128, layers * projections, VOCABULARY * hidden, ranks=ranks)


SMALL = qwen3(28, 1024, 16, 3072)  # Qwen3-0.6B
LARGE = qwen3(36, 4096, 32, 12288)  # Qwen3-8B


def test_cache_bytes_of_a_token() -> None:
    assert (SMALL.cache_token, LARGE.cache_token) == (114_688, 147_456)


@pytest.mark.parametrize(
    ("size", "batch", "milliseconds"),
    [
        (SMALL, 1, 0.30),
        (SMALL, 64, 2.03),
        (SMALL, 256, 7.39),
        (LARGE, 1, 3.56),
        (LARGE, 256, 13.92),
    ],
)
def test_decode_step_at_a_context_of_1024(size: ModelSize, batch: int, milliseconds: float) -> None:
    seconds = decode_step(size, MACHINE, batch, batch * 1024)

    assert 1e3 * seconds == pytest.approx(milliseconds, abs=0.01)


@pytest.mark.parametrize(("size", "seconds"), [(SMALL, 3.705), (LARGE, 10.583)])
def test_floor_of_a_whole_workload(size: ModelSize, seconds: float) -> None:
    assert floor(size, MACHINE, workload("nanobench:0")).total == pytest.approx(seconds, abs=0.001)


def test_fewer_at_once_takes_longer() -> None:
    work = workload("uniform:16:8:8:4:64")
    floors = [floor(SMALL, MACHINE, work, n).total for n in (1, 4, 16)]

    assert floors[0] > 2 * floors[1] > 2 * floors[2]
    assert floors[2] == floor(SMALL, MACHINE, work).total


def test_one_at_once_is_the_sum_of_single_runs() -> None:
    work = workload("decode:3:8:5:1")
    single = workload("decode:1:8:5:1")

    assert floor(SMALL, MACHINE, work, 1).outputs == pytest.approx(
        3 * floor(SMALL, MACHINE, single).outputs
    )


def test_cached_prompt_tokens_are_free() -> None:
    whole = prompt_pass(LARGE, MACHINE, [4096] * 8)

    assert prompt_pass(LARGE, MACHINE, [4096] * 8, cached=4 * 4096) == pytest.approx(
        whole / 2, rel=0.01
    )


def test_a_short_prompt_still_reads_the_weights() -> None:
    assert prompt_pass(LARGE, MACHINE, [1]) == pytest.approx(15.14e9 / 4.3e12, rel=0.01)


def test_two_ranks_halve_the_floor() -> None:
    work = workload("decode:8")
    halved = floor(qwen3(36, 4096, 32, 12288, ranks=2), MACHINE, work).total

    assert 2 * halved == pytest.approx(floor(LARGE, MACHINE, work).total)
