"""What every sampler must do with a wish that it accepts; run for each `--sampler`."""

from __future__ import annotations

import math

import pytest
import torch

from core.interfaces import Sampler
from core.sampling.params import SamplingParams
from core.testing.sampling import (
    BAD_WORD,
    SIZE,
    assert_drawn,
    ids,
    made,
    make_rows,
    normal,
    refusals,
    rows_of,
    sampled,
    shares,
)

Kind = type[Sampler]

CUTS = [
    SamplingParams(),
    SamplingParams(temperature=0.5),
    SamplingParams(temperature=2.0),
    SamplingParams(temperature=2.0, top_k=4),
    SamplingParams(top_p=0.8),
    SamplingParams(min_p=0.1),
    SamplingParams(temperature=1.5, min_p=0.02, top_k=5, top_p=0.9),
]
HONOURED = {
    "allowed_token_ids": (SamplingParams(allowed_token_ids=[9, 250]), {9, 250}),
    "logit_bias that forces": (SamplingParams(logit_bias={11: 100}), {11}),
    "logit_bias that forbids": (SamplingParams(temperature=0, logit_bias={3: -100}), {4}),
    "min_tokens": (SamplingParams(min_tokens=9), {*range(2, SIZE)}),
    "top_k": (SamplingParams(top_k=1), {3}),
    "top_p": (SamplingParams(top_p=0.01), {3}),
    "min_p": (SamplingParams(min_p=1.0), {3}),
    "presence_penalty": (SamplingParams(temperature=0, presence_penalty=2.0), {0}),
    "a small presence_penalty": (SamplingParams(temperature=0, presence_penalty=0.5), {3}),
    "frequency_penalty": (SamplingParams(temperature=0, frequency_penalty=0.5), {4}),
    "repetition_penalty": (SamplingParams(temperature=0, repetition_penalty=1.5), {1}),
}


def skip_refused(sampler: Kind, *wishes: SamplingParams) -> None:
    if reasons := refusals(sampler, *wishes):
        pytest.skip("; ".join(reasons))


@pytest.mark.parametrize("wish", HONOURED)
def test_what_is_accepted_is_done(sampler: Kind, device: str, wish: str) -> None:
    """Token 3 is the best, then 4, 0 and 1. The output so far is 4, 3, 3; the prompt 0, 0."""
    params, possible = HONOURED[wish]
    skip_refused(sampler, params)
    logits = torch.zeros(1, SIZE, device=device)
    logits[0, [3, 4, 0, 1]] = torch.tensor([4.0, 3.9, 3.0, 2.9], device=device)
    rows = make_rows(
        [params] * 50, SIZE, prompts=[[0, 0]] * 50, outputs=[[4, 3, 3]] * 50, stop_ids=[0, 1],
        device=device,
    )  # fmt: skip
    assert set(ids(sampler, logits.expand(50, -1), rows)) <= possible


def test_bad_words_are_not_completed(sampler: Kind, device: str) -> None:
    skip_refused(sampler, BAD_WORD)
    logits = torch.zeros(3, SIZE, device=device)
    logits[:, 5], logits[:, 7], logits[:, 9] = 4.0, 3.0, 2.0
    outputs = [[1, 6], [6, 1], [7]]  # the first is one token short of the bad word 6 7
    rows = make_rows([BAD_WORD] * 3, SIZE, outputs=outputs, device=device)
    assert ids(sampler, logits, rows) == [9, 7, 7]


def test_log_probabilities_are_those_of_the_raw_logits(sampler: Kind, device: str) -> None:
    wishes = [SamplingParams(), SamplingParams(temperature=0, logprobs=4), SamplingParams(top_k=2)]
    wishes[2].logprobs = 0
    skip_refused(sampler, *wishes)
    logits = normal(3, device)
    found = sampled(sampler, logits, rows_of(wishes, device))
    raw = logits.cpu().double().log_softmax(-1)
    assert set(found.logprobs or {}) == {1, 2}
    for s, count in ((1, 4), (2, 0)):
        (entry,) = (found.logprobs or {})[s]
        assert entry.token == int(found.ids[s])
        assert entry.logprob == pytest.approx(float(raw[s, entry.token]), abs=1e-5)
        assert entry.rank == 1 + int((raw[s] > raw[s, entry.token]).sum())
        best = raw[s].topk(count)
        assert entry.top_ids == best.indices.tolist()
        assert entry.top_logprobs == pytest.approx(best.values.tolist(), abs=1e-5)


@pytest.mark.parametrize("params", CUTS, ids=str)
@pytest.mark.parametrize("size", [7, 1003])
def test_the_distribution_is_the_one_that_is_asked_for(
    sampler: Kind, device: str, params: SamplingParams, size: int
) -> None:
    skip_refused(sampler, params)
    logits = torch.tensor([2.0, 1.5, 1.0, 0.0, -1.0, -3.0, -6.0])
    if size > 7:
        logits = torch.cat((torch.linspace(-9, -4, size - 7), logits))
    logits = logits[torch.randperm(size, generator=torch.Generator().manual_seed(3))]
    logits[2] = -math.inf
    count, steps, instance = 50, 40, made(sampler, size)
    counts = torch.zeros(size)
    rows = make_rows([params] * count, size, device=device)
    for step in range(steps):
        now = rows.table.select(rows.rows, rows.ends + step)
        found = ids(instance, logits.to(device).expand(count, -1), now)
        counts += torch.bincount(torch.tensor(found), minlength=size)
    assert_drawn(counts, shares(logits, params))
