"""min_p, top_k and top_p in Triton against their twin, which sorts.

Runs on CUDA (`--on cuda`), and without a GPU where TRITON_INTERPRET=1 is set.
"""

from __future__ import annotations

import math
import os
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from core.sampling.params import SamplingParams
from core.testing.sampling import make_rows, normal
from plugins.sampling.truncation import floors as floors_by_sorting

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
VOCAB = 1500 if INTERPRETED else 151_936


@pytest.fixture
def ours(device: str) -> Any:
    from plugins.kernels.triton.kernels import TritonKernels

    if reasons := TritonKernels.rejects(torch.float32, device.partition(":")[0]):
        pytest.skip("; ".join(reasons))
    return TritonKernels(TritonKernels.Options())


def some_params(rng: random.Random, vocab: int) -> SamplingParams:
    return SamplingParams(
        temperature=rng.choice([0.0, 0.1, 0.6, 1.0, 2.0]),
        top_k=rng.choice([0, 0, 1, 2, 20, 50, 1000, vocab]),
        top_p=rng.choice([1.0, 1.0, 0.95, 0.5, 0.999, 0.01]),
        min_p=rng.choice([0.0, 0.0, 0.05, 0.9]),
        seed=rng.randrange(99),
    )


@pytest.mark.parametrize("seed", range(12 if INTERPRETED else 40))
def test_floors_are_those_of_sorting(ours: Any, device: str, seed: int) -> None:
    rng = random.Random(seed)
    vocab = rng.choice([1, 5, 128, 129, 5000, VOCAB])
    count = rng.randint(1, 4 if INTERPRETED else 40)
    wishes = [some_params(rng, vocab) for _ in range(count)]
    logits = normal(count, device, seed, vocab) * rng.choice([0.01, 1, 3, 20])
    if rng.random() < 0.3:
        logits[:, 1::2] = -math.inf
    if rng.random() < 0.3:
        logits = logits.round()  # many ties, and both zeros
    logits = logits.to(rng.choice(DTYPES))
    rows = make_rows(wishes, vocab, device=device)
    found = ours.floors(logits, rows.table.columns, rows.index)
    for s, params in enumerate(wishes):
        row = logits[s].float()
        if params.greedy or not (params.top_k or params.top_p < 1 or params.min_p):
            assert found[s] == -math.inf
            continue
        one = rows.subset([s])
        assert_same_cut(row, float(found[s]), float(floors_by_sorting(row[None], one)), params)


def assert_same_cut(row: Tensor, found: float, wanted: float, params: SamplingParams) -> None:
    """The same tokens stay; top_p may be off by what rounding adds to a sum of float32."""
    ours, theirs = row >= found, row >= wanted
    if torch.equal(ours, theirs):
        return
    assert params.top_p < 1, f"{int(ours.sum())} tokens stay instead of {int(theirs.sum())}"
    share = (row.double() / params.temperature).softmax(-1)
    both = ours & theirs
    for kept in (ours, theirs):  # what one keeps beyond the other lies at the very border
        extra = row[kept & ~both]
        assert not len(extra) or len(extra.unique()) == 1
    border = float(share[both].sum() / share[row >= _before_top_p(row, params)].sum())
    assert abs(border - params.top_p) < 3e-6


def _before_top_p(row: Tensor, params: SamplingParams) -> float:
    """The floor that min_p and top_k make."""
    floor = -math.inf
    if params.min_p:
        floor = float(row.max()) + params.temperature * math.log(params.min_p)
    if params.top_k:
        floor = max(floor, float(row.topk(min(params.top_k, len(row))).values[-1]))
    return floor


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_flat_row_keeps_its_share_of_the_whole_vocabulary(
    ours: Any, device: str, dtype: torch.dtype
) -> None:
    """More groups are left than a program holds."""
    vocab = 20_000
    logits = (normal(2, device, 0, vocab) * 0.05).to(dtype)
    wishes = [SamplingParams(top_p=0.9), SamplingParams(top_k=12_345)]
    rows = make_rows(wishes, vocab, device=device)
    found = ours.floors(logits, rows.table.columns, rows.index)
    for s, params in enumerate(wishes):
        row = logits[s].float()
        wanted = floors_by_sorting(row[None], rows.subset([s]))
        assert_same_cut(row, float(found[s]), float(wanted), params)


def test_rows_that_ask_for_nothing_have_no_floor_whatever_their_logits(
    ours: Any, device: str
) -> None:
    logits = normal(4, device, 0, VOCAB)
    logits[1] = math.nan
    logits[2] = -math.inf
    logits[3, 5] = math.inf
    wishes = [SamplingParams(), *[SamplingParams(top_k=3, top_p=0.5)] * 3]
    rows = make_rows(wishes, VOCAB, device=device)
    assert ours.floors(logits, rows.table.columns, rows.index).tolist() == [-math.inf] * 4
