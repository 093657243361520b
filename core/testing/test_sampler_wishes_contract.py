"""What every sampler must do with a wish that it accepts; run for each `--sampler`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from core.interfaces import Sampler
from core.sampling.params import SamplingParams
from core.testing.sampling import (
    BAD_WORD,
    SIZE,
    ids,
    made,
    make_rows,
    normal,
    refusals,
    rows_of,
    sampled,
)

Kind = type[Sampler]

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
EXACT = {  # logits, -9 where nothing is said, and the token that is right
    "min_tokens is reached": (SamplingParams(temperature=0, min_tokens=3), {0: 9.0}, 0),
    "repetition_penalty below 0": (
        SamplingParams(temperature=0, repetition_penalty=2.0), {4: -1.0, 7: -1.5}, 7,
    ),
    "a small logit_bias": (SamplingParams(temperature=0, logit_bias={4: 1.0}), {9: 4.0, 4: 2.0}, 9),
}  # fmt: skip
STEPS: dict[
    str, tuple[dict[str, Any], dict[int, float], list[int]]
] = {  # logits, 0 where nothing is said, and the tokens of three steps
    "presence_penalty": ({"presence_penalty": 1.0}, {3: 4.0, 4: 3.9, 5: 3.8}, [3, 4, 5]),
    "frequency_penalty": ({"frequency_penalty": 1.0}, {3: 4.0, 4: 3.9, 5: 3.8}, [3, 4, 5]),
    "repetition_penalty": ({"repetition_penalty": 2.0}, {3: 4.0, 4: 3.9, 5: 3.8}, [3, 4, 5]),
    "min_tokens": ({"min_tokens": 2}, {1: 9.0, 3: 4.0}, [3, 3, 1]),
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


def test_all_log_probabilities(sampler: Kind, device: str) -> None:
    """-1 asks for those of every token."""
    params = SamplingParams(temperature=0, logprobs=-1)
    skip_refused(sampler, params)
    logits = normal(1, device)
    found = sampled(sampler, logits, rows_of([params], device)).logprobs
    assert set(found or {}) == {0}
    (entry,) = (found or {})[0]
    falling = logits[0].cpu().double().log_softmax(-1).sort(descending=True)
    assert entry.top_ids == falling.indices.tolist()
    assert entry.top_logprobs == pytest.approx(falling.values.tolist(), abs=1e-4)


@pytest.mark.parametrize("wish", EXACT)
def test_what_is_accepted_is_done_no_further_than_asked(
    sampler: Kind, device: str, wish: str
) -> None:
    """The output so far is 4, 3, 3; 0 and 1 end a text."""
    params, known, wanted = EXACT[wish]
    skip_refused(sampler, params)
    logits = torch.full((1, SIZE), -9.0, device=device)
    for token, value in known.items():
        logits[0, token] = value
    rows = make_rows([params], SIZE, outputs=[[4, 3, 3]], stop_ids=[0, 1], device=device)
    assert ids(sampler, logits, rows) == [wanted]


@pytest.mark.parametrize("wish", STEPS)
def test_each_step_looks_at_the_tokens_so_far(sampler: Kind, device: str, wish: str) -> None:
    """Rows stay the same, and what `rows.remember` keeps of them; 1 ends a text."""
    fields, known, wanted = STEPS[wish]
    params = SamplingParams(temperature=0, **fields)
    skip_refused(sampler, params)
    logits = torch.zeros(1, SIZE, device=device)
    logits[0, [*known]] = torch.tensor([*known.values()], device=device)
    rows = make_rows([params], SIZE, stop_ids=[1], device=device)
    instance, found = made(sampler), []
    for step in range(3):
        now = rows.table.select(rows.rows, rows.ends + step)
        answer = sampled(instance, logits, now)
        now.record(answer.ids)
        found += answer.ids.tolist()
    assert found == wanted
