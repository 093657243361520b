"""How often a sampler must draw each token; run for each `--sampler`.

A sampler that draws from another distribution on purpose leaves these out: `-k "not distribution"`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from core.interfaces import Sampler
from core.sampling.params import SamplingParams
from core.testing.sampling import assert_drawn, ids, made, make_rows, refusals, shares

Kind = type[Sampler]
Drawn = Callable[[Tensor, SamplingParams], Tensor]

CUTS = [
    SamplingParams(),
    SamplingParams(temperature=0.5),
    SamplingParams(temperature=2.0),
    SamplingParams(temperature=2.0, top_k=4),
    SamplingParams(top_p=0.8),
    SamplingParams(min_p=0.1),
    SamplingParams(temperature=1.5, min_p=0.02, top_k=5, top_p=0.9),
]
ROWS, STEPS = 50, 40


@pytest.fixture
def drawn(sampler: Kind, device: str) -> Drawn:
    """Counts [V] of ROWS * STEPS draws from logits [V]; skips what the sampler refuses."""

    def drawn(logits: Tensor, params: SamplingParams) -> Tensor:
        if reasons := refusals(sampler, params):
            pytest.skip("; ".join(reasons))
        size = len(logits)
        instance, counts = made(sampler, size), torch.zeros(size)
        rows = make_rows([params] * ROWS, size, device=device)
        for step in range(STEPS):
            now = rows.table.select(rows.rows, rows.ends + step)
            found = ids(instance, logits.to(device).expand(ROWS, -1), now)
            counts += torch.bincount(torch.tensor(found), minlength=size)
        return counts

    return drawn


@pytest.mark.parametrize("params", CUTS, ids=str)
@pytest.mark.parametrize("size", [7, 1003])
def test_the_distribution_is_the_one_that_is_asked_for(
    drawn: Drawn, params: SamplingParams, size: int
) -> None:
    logits = torch.tensor([2.0, 1.5, 1.0, 0.0, -1.0, -3.0, -6.0])
    if size > 7:
        logits = torch.cat((torch.linspace(-9, -4, size - 7), logits))
    logits = logits[torch.randperm(size, generator=torch.Generator().manual_seed(3))]
    logits[2] = -math.inf
    assert_drawn(drawn(logits, params), shares(logits, params))


def test_the_distribution_is_of_logits_with_bias_and_then_a_temperature(drawn: Drawn) -> None:
    params = SamplingParams(temperature=4.0, logit_bias={4: 4.0})
    logits = torch.linspace(0, 3, 20)
    counts = drawn(logits, params)
    logits[4] += 4.0
    assert_drawn(counts, shares(logits, params))


def test_the_distribution_reaches_every_token_of_a_large_vocabulary(
    sampler: Kind, device: str
) -> None:
    if reasons := refusals(sampler, params := SamplingParams()):
        pytest.skip("; ".join(reasons))
    size, count, parts = 70_000, 120, 20
    rows = make_rows([params] * count, size, device=device)
    instance = made(sampler, size, rows=count)
    found = ids(instance, torch.zeros(1, size, device=device).expand(count, -1), rows)
    counts = torch.bincount(torch.tensor(found) * parts // size, minlength=parts)
    assert_drawn(counts, torch.full((parts,), 1 / parts, dtype=torch.float64))
