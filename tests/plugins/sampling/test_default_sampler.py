"""The default sampler as a whole: greedy rows, neighbours, seeds, hopeless rows, logprobs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import transformers

from core.interfaces import Sampled
from core.sampling import noise
from core.sampling.params import SamplingParams
from core.sampling.rows import SampleRows
from core.sampling.static_rows import StaticRows
from core.testing.sampling import limits, make_rows
from plugins.sampling.default import DefaultSampler

SIZE = 300
REJECT = 5.0  # standard deviations; all seeds are fixed

WISHES = [
    SamplingParams(temperature=0),
    SamplingParams(seed=1),
    SamplingParams(temperature=0.3, seed=2),
    SamplingParams(temperature=5.0, seed=3),
    SamplingParams(top_k=4, seed=4),
    SamplingParams(top_p=0.7, seed=5),
    SamplingParams(min_p=0.05, seed=6),
    SamplingParams(temperature=0.6, top_k=20, top_p=0.95, min_p=0.01, seed=7),
    SamplingParams(temperature=0, presence_penalty=2.0),
    SamplingParams(frequency_penalty=2.0, seed=8),
    SamplingParams(temperature=0, repetition_penalty=3.0),
    SamplingParams(temperature=0, logit_bias={17: 100}),
    SamplingParams(logit_bias={18: -100}, seed=9),
    SamplingParams(temperature=0, allowed_token_ids=[250, 251]),
    SamplingParams(min_tokens=9, seed=10),
    SamplingParams(temperature=0, bad_words=["x"]),
    SamplingParams(temperature=0, logprobs=3),
    SamplingParams(logprobs=0, top_k=2, seed=11),
]
WISHES[15].bad_words_token_ids = [[5], [6, 7]]


def sampler(size: int = SIZE, processors: list | None = None) -> DefaultSampler:
    return DefaultSampler(DefaultSampler.Options(processors=processors or []), limits(size))


def random_logits(rows: int, seed: int = 0, size: int = SIZE, device: str = "cpu") -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, size, generator=generator) * 3).to(device)


def rows_of(params: list[SamplingParams], at: list[int] | None = None, **more) -> SampleRows:
    """Request s has the prompt [s, 7] and has written [s, s, 2 s]."""
    at = list(range(len(params))) if at is None else at
    return make_rows(
        params, SIZE, prompts=[[s, 7] for s in at], outputs=[[s, s, 2 * s] for s in at],
        stop_ids=[0, 1], **more,
    )  # fmt: skip


def sampled(logits: torch.Tensor, rows: SampleRows) -> Sampled:
    return sampler(logits.shape[1])(logits, rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_greedy_rows_take_the_largest_raw_logit_whatever_their_neighbours_do(
    dtype: torch.dtype, device: str
) -> None:
    logits = random_logits(len(WISHES), device=device).to(dtype)
    for s in range(len(WISHES)):
        wishes = [*WISHES]
        wishes[s] = SamplingParams(temperature=0, top_k=3, top_p=0.1)
        ids = sampled(logits, rows_of(wishes, device=device)).ids
        assert int(ids[s]) == int(logits[s].float().argmax())


def test_greedy_ties_go_to_the_lowest_id() -> None:
    logits = torch.zeros(2, SIZE)
    logits[:, 100:110] = 4
    wishes = [SamplingParams(temperature=0), SamplingParams(temperature=0, presence_penalty=0.1)]
    assert sampled(logits, rows_of(wishes)).ids.tolist() == [100, 100]


@pytest.mark.parametrize("seed", range(4))
def test_every_row_gets_the_same_alone_among_others_and_in_any_order(
    seed: int, device: str
) -> None:
    logits = random_logits(len(WISHES), seed, device=device)
    together = sampled(logits, rows_of(WISHES, device=device)).ids.tolist()
    for s, params in enumerate(WISHES):
        alone = sampled(logits[s : s + 1], rows_of([params], [s], device=device))
        assert alone.ids.tolist() == [together[s]], params
    order = np.random.default_rng(seed).permutation(len(WISHES)).tolist()
    shuffled = rows_of([WISHES[s] for s in order], order, device=device)
    assert sampled(logits[order], shuffled).ids.tolist() == [together[s] for s in order]


def test_logits_are_left_as_they_are(device: str) -> None:
    for wishes in (WISHES, WISHES[10:12], WISHES[:1]):
        logits = random_logits(len(wishes), device=device)
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
    logits = random_logits(count, 5)
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
    wanted = noise.draw_from_all(scores, torch.ones(count), rows.keys)
    ids = sampled(logits, rows).ids
    assert ids.tolist() == wanted.tolist()
    assert ids.tolist() != scores.argmax(-1).tolist()


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=2.0, top_k=4),
        SamplingParams(top_p=0.8),
        SamplingParams(min_p=0.1),
    ],
)
def test_draws_follow_the_distribution_that_was_asked_for(params: SamplingParams) -> None:
    logits = torch.tensor([2.0, 1.5, 1.0, 0.0, -1.0, -3.0, -6.0])
    scores = (logits / params.temperature).double()[None]
    if params.min_p:
        scores = transformers.MinPLogitsWarper(params.min_p)(None, scores)
    if params.top_k:
        scores = transformers.TopKLogitsWarper(params.top_k)(None, scores)
    if params.top_p < 1:
        scores = transformers.TopPLogitsWarper(params.top_p)(None, scores)
    share = scores[0].softmax(-1).numpy()
    draws = 40 * 100
    counts = np.zeros(7)
    rows = make_rows([params] * 40, 7)
    for step in range(draws // 40):
        now = rows.table.select(rows.rows, rows.ends + step)
        ids = sampled(logits.expand(40, -1), now).ids
        counts += np.bincount(ids.numpy(), minlength=7)
    possible = share > 0
    assert not counts[~possible].any()
    usual = share * draws > 5
    chi = ((counts - share * draws) ** 2)[usual] / (share * draws)[usual]
    freedom = int(usual.sum()) - 1
    assert abs(chi.sum() - freedom) < REJECT * math.sqrt(2 * freedom)


def test_a_seed_fixes_the_tokens_and_another_changes_them() -> None:
    logits = random_logits(64, 2) / 10

    def ids(seed: int, position: int) -> list[int]:
        rows = make_rows([SamplingParams(seed=seed)] * 64, SIZE, positions=[position] * 64)
        return sampled(logits, rows).ids.tolist()

    assert ids(5, 3) == ids(5, 3)
    for other in (ids(6, 3), ids(5, 4), ids(5 + 2**32, 3)):
        assert sum(a == b for a, b in zip(ids(5, 3), other, strict=True)) < 8


def test_hopeless_rows_are_named_and_the_others_go_on(device: str) -> None:
    wishes = [
        SamplingParams(),
        SamplingParams(temperature=0),
        SamplingParams(top_p=0.9, top_k=3),
        SamplingParams(temperature=0, logit_bias={4: 1.0}),
        SamplingParams(allowed_token_ids=[5], logprobs=1),
        SamplingParams(logprobs=2),
    ]
    good = random_logits(6, device=device)
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
    logits = random_logits(2)
    logits[0, 5] = -math.inf
    found = sampled(logits, rows_of([params, params]))
    assert list(found.errors) == [0]
    assert found.ids.tolist() == [0, 5]


def test_no_error_where_nothing_is_wrong() -> None:
    assert not sampled(random_logits(18), rows_of(WISHES)).errors


def test_logprobs_are_those_of_the_raw_logits(device: str) -> None:
    params = SamplingParams(
        temperature=0.3, logit_bias={9: 50}, repetition_penalty=2.0, top_k=2, logprobs=4
    )
    logits = random_logits(3, device=device)
    wishes = [SamplingParams(), params, SamplingParams(temperature=0, logprobs=0)]
    found = sampled(logits, rows_of(wishes, device=device))
    raw = logits.cpu().double().log_softmax(-1)
    assert set(found.logprobs) == {1, 2}
    (entry,) = found.logprobs[1]
    assert entry.token == int(found.ids[1]) == 9
    assert entry.logprob == pytest.approx(float(raw[1, 9]), abs=1e-5)
    assert entry.rank == 1 + int((raw[1] > raw[1, 9]).sum())
    assert entry.top_ids == raw[1].topk(4).indices.tolist()
    assert entry.top_logprobs == pytest.approx(raw[1].topk(4).values.tolist(), abs=1e-5)
    (entry,) = found.logprobs[2]
    assert (entry.rank, entry.top_ids) == (1, [])


def test_all_logprobs() -> None:
    found = sampled(random_logits(1), rows_of([SamplingParams(logprobs=-1)]))
    assert sorted(found.logprobs[0][0].top_ids) == list(range(SIZE))


def test_without_logprobs_there_are_none() -> None:
    assert sampled(random_logits(2), rows_of(WISHES[:2])).logprobs is None


def test_bias_forces_and_forbids() -> None:
    logits = random_logits(50)
    forced = [SamplingParams(logit_bias={11: 100})] * 50
    assert sampled(logits, rows_of(forced)).ids.unique().tolist() == [11]
    best = logits.argmax(-1).tolist()
    banned = [SamplingParams(temperature=0, logit_bias={token: -100}) for token in best]
    assert sampled(logits, rows_of(banned)).ids.tolist() == logits.topk(2).indices[:, 1].tolist()


def test_the_order_of_a_penalised_and_a_plain_row_does_not_matter() -> None:
    logits = torch.zeros(2, SIZE)
    logits[:, 3], logits[:, 8] = 2.0, 1.5
    penalised, plain = SamplingParams(temperature=0, presence_penalty=1.0), WISHES[0]
    for params, wanted in (([penalised, plain], [8, 3]), ([plain, penalised], [3, 8])):
        rows = make_rows(params, SIZE, outputs=[[3], [3]])
        assert sampled(logits, rows).ids.tolist() == wanted


def test_ids_are_int64(device: str) -> None:
    for wishes in (WISHES, WISHES[:1], WISHES[1:2]):
        ids = sampled(random_logits(len(wishes), device=device), rows_of(wishes, device=device)).ids
        assert (ids.dtype, ids.shape) == (torch.int64, (len(wishes),))


def test_static_rows_get_the_tokens_of_the_steps_own(device: str) -> None:
    rows = rows_of(WISHES[:4], device=device)
    static = StaticRows(rows.table, 4)
    static.load(rows)
    logits = random_logits(4, device=device)
    assert sampled(logits, static).ids.tolist() == sampled(logits, rows).ids.tolist()
