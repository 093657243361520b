"""Time that sampling takes on one core of a CPU, with the vocabulary of Qwen3."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from core.sampling.params import SamplingParams
from core.testing.sampling import limits, make_rows
from plugins.sampling.default import DefaultSampler

VOCABULARY = 151_936

pytestmark = pytest.mark.speed


def milliseconds(call: Callable[[], object], repeats: int = 20) -> float:
    """The best of some repeats, after one to warm up."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


@pytest.mark.parametrize(
    ("params", "one", "sixteen"),
    [
        (SamplingParams(temperature=0), 0.2, 2),
        (SamplingParams(temperature=0.6), 1.5, 15),
        (SamplingParams(temperature=0.6, top_k=20, top_p=0.95), 1.5, 15),
        (SamplingParams(temperature=0.6, repetition_penalty=1.1, top_k=20), 1.5, 15),
    ],
)
def test_sampling_bfloat16_logits(params: SamplingParams, one: float, sixteen: float) -> None:
    sampler = DefaultSampler(DefaultSampler.Options(), limits(VOCABULARY))
    logits = torch.randn(16, VOCABULARY, generator=torch.Generator().manual_seed(0)) * 3
    for count, bound in ((1, one), (16, sixteen)):
        rows = make_rows([params] * count, VOCABULARY)
        step = logits[:count].bfloat16()
        with torch.inference_mode():
            took = milliseconds(lambda step=step, rows=rows: sampler(step, rows).ids)
        print(f"{count} rows, {params}: {took:.2f} ms")
        assert took < bound


def test_selecting_256_rows_takes_40_microseconds_at_most() -> None:
    rows = make_rows([SamplingParams(temperature=0.6)] * 256, 1000)
    table, numbers, ends = rows.table, rows.rows, rows.ends
    backwards = numbers[::-1].copy()

    def select() -> None:
        assert table.select(backwards, ends).plain
        assert table.select(numbers, ends).plain

    assert milliseconds(select) / 2 < 0.04
