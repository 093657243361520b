"""The default sampler beyond core.testing: ties, its pipeline, hopeless rows, log probabilities."""

from __future__ import annotations

import math

import torch
import transformers

from core.interfaces import Sampled
from core.sampling import noise
from core.sampling.params import SamplingParams
from core.sampling.rows import SampleRows
from core.testing.sampling import SIZE, WISHES, made, make_rows, normal, rows_of
from plugins.sampling.default import DefaultSampler


def sampled(logits: torch.Tensor, rows: SampleRows) -> Sampled:
    return made(DefaultSampler, logits.shape[1])(logits, rows)


def test_greedy_ties_go_to_the_lowest_id() -> None:
    logits = torch.zeros(2, SIZE)
    logits[:, 100:110] = 4
    wishes = [SamplingParams(temperature=0), SamplingParams(temperature=0, presence_penalty=0.1)]
    assert sampled(logits, rows_of(wishes)).ids.tolist() == [100, 100]


def test_logits_are_left_as_they_are(device: str) -> None:
    for wishes in (WISHES, WISHES[10:12], WISHES[:1]):
        logits = normal(len(wishes), device=device)
        before = logits.clone()
        sampled(logits, rows_of(wishes, device=device))
        assert torch.equal(logits, before)


def test_the_pipeline_is_that_of_transformers_in_vllms_order() -> None:
    """Bias, penalty, temperature, min_p, top_k, top_p; then the same noise by hand."""
    count = 40
    params = SamplingParams(
        temperature=0.7, min_p=0.01, top_k=25, top_p=0.9, repetition_penalty=1.4,
        logit_bias={3: 4.0, 4: -2.0},
    )  # fmt: skip
    logits = normal(count, seed=5)
    rows = rows_of([params] * count)
    known = torch.stack([rows.tokens(s).long() for s in range(count)])
    scores = logits.clone()
    scores[:, 3] += 4
    scores[:, 4] -= 2
    for warper in (
        transformers.RepetitionPenaltyLogitsProcessor(1.4),
        transformers.TemperatureLogitsWarper(0.7),
        transformers.MinPLogitsWarper(0.01),
        transformers.TopKLogitsWarper(25),
        transformers.TopPLogitsWarper(0.9),
    ):
        scores = warper(known, scores)
    wanted = noise.drawn_from_all(scores, torch.ones(count), rows.keys, None, 0)[0]
    ids = sampled(logits, rows).ids
    assert ids.tolist() == wanted.tolist()
    assert ids.tolist() != scores.argmax(-1).tolist()


def test_hopeless_rows_are_named_and_the_others_go_on(device: str) -> None:
    wishes = [
        SamplingParams(),
        SamplingParams(temperature=0),
        SamplingParams(top_p=0.9, top_k=3),
        SamplingParams(temperature=0, logit_bias={4: 1.0}),
        SamplingParams(allowed_token_ids=[5], logprobs=1),
        SamplingParams(logprobs=2),
    ]
    good = normal(6, device=device)
    wanted = sampled(good, rows_of(wishes, device=device)).ids.tolist()
    for bad, word in ((math.nan, "nan"), (-math.inf, "no token is possible"), (math.inf, "inf")):
        for s in range(len(wishes)):
            logits = good.clone()
            logits[s] = bad if bad != bad else torch.full((SIZE,), bad)
            if bad != bad:
                logits[s], logits[s, 5] = good[s], bad
            found = sampled(logits, rows_of(wishes, device=device))
            assert list(found.errors) == [s]
            assert word in found.errors[s]
            assert found.ids.tolist() == [0 if i == s else w for i, w in enumerate(wanted)]
            assert set(found.logprobs) == {4, 5} - {s}


def test_a_row_whose_wishes_leave_nothing_is_named() -> None:
    params = SamplingParams(allowed_token_ids=[5])
    logits = normal(2)
    logits[0, 5] = -math.inf
    found = sampled(logits, rows_of([params, params]))
    assert list(found.errors) == [0]
    assert found.ids.tolist() == [0, 5]


def test_no_error_where_nothing_is_wrong() -> None:
    assert not sampled(normal(18), rows_of(WISHES)).errors


def test_all_logprobs() -> None:
    found = sampled(normal(1), rows_of([SamplingParams(logprobs=-1)]))
    assert sorted(found.logprobs[0][0].top_ids) == list(range(SIZE))


def test_without_logprobs_there_are_none() -> None:
    assert sampled(normal(2), rows_of(WISHES[:2])).logprobs is None


def test_the_order_of_a_penalised_and_a_plain_row_does_not_matter() -> None:
    logits = torch.zeros(2, SIZE)
    logits[:, 3], logits[:, 8] = 2.0, 1.5
    penalised, plain = SamplingParams(temperature=0, presence_penalty=1.0), WISHES[0]
    for params, wanted in (([penalised, plain], [8, 3]), ([plain, penalised], [3, 8])):
        rows = make_rows(params, SIZE, outputs=[[3], [3]])
        assert sampled(logits, rows).ids.tolist() == wanted
