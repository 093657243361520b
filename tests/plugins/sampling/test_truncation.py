"""min_p, top_k and top_p against a full sort in float64, and against transformers."""

from __future__ import annotations

import math

import pytest
import torch
import transformers
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from core.sampling.params import SamplingParams
from core.testing.sampling import make_rows
from plugins.sampling import truncation


def kept_by_sorting(logits: list[float], params: SamplingParams) -> set[int]:
    """The ids that stay, by the definitions, in float64. Rejects cases too close to call."""
    heat = [x / params.temperature for x in logits]
    best = max(heat)
    weight = [math.exp(x - best) for x in heat]
    if params.min_p:
        assume(all(abs(w / params.min_p - 1) > 1e-5 for w in weight))
    stay = [i for i, w in enumerate(weight) if w >= params.min_p]
    ranked = sorted(stay, key=lambda i: -logits[i])
    if params.top_k and params.top_k < len(ranked):
        stay = [i for i in stay if logits[i] >= logits[ranked[params.top_k - 1]]]
    if params.top_p < 1:
        ranked = sorted(stay, key=lambda i: -logits[i])
        goal = params.top_p * math.fsum(weight[i] for i in stay)
        before = 0.0
        for i in ranked:
            assume(abs(before - goal) > 1e-5 * goal)
            if before >= goal:
                break
            before, border = before + weight[i], logits[i]
        stay = [i for i in stay if logits[i] >= border]
    return {i for i in stay if logits[i] > -math.inf}


def kept(logits: torch.Tensor, params: list[SamplingParams]) -> list[set[int]]:
    floor = truncation.floors(logits, make_rows(params, logits.shape[1], device=logits.device.type))
    stays = (logits >= floor[:, None]) & (logits > -math.inf)
    return [set(row.nonzero()[:, 0].tolist()) for row in stays.cpu()]


some_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 0, 1, 2, 5, 30]),
    top_p=st.sampled_from([1.0, 1.0, 0.01, 0.3, 0.9, 0.999]),
    min_p=st.sampled_from([0.0, 0.0, 0.02, 0.4, 0.97]),
).filter(lambda p: p.top_k or p.top_p < 1 or p.min_p)

tying = st.lists(st.sampled_from([-math.inf, -3.0, -0.5, 0.0, 0.5, 1.0, 4.0]), min_size=1)
smooth = st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=60)


TIES = [4.0] + [1.0] * 10  # top_k=2 keeps all eleven, and the ten have a third of the weight


@settings(max_examples=300)
@example(TIES, SamplingParams(top_k=2, top_p=0.9), 256)
@given(st.one_of(tying, smooth), some_params, st.sampled_from([1, 4, 256]))
def test_the_same_tokens_stay_as_by_a_full_sort(
    logits: list[float], params: SamplingParams, few: int
) -> None:
    assume(max(logits) > -math.inf)
    wanted = kept_by_sorting(logits, params)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(truncation, "FEW", few)
        assert kept(torch.tensor([logits]), [params]) == [wanted]


def test_rows_with_different_wishes_do_not_disturb_each_other(device: str) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = (torch.randn(8, 700, generator=generator) * 2).to(device)
    wishes = [
        SamplingParams(top_k=3),
        SamplingParams(top_p=0.999, temperature=2.0),
        SamplingParams(min_p=0.2),
        SamplingParams(top_k=400, top_p=0.9),
        SamplingParams(top_p=0.1, temperature=0.2),
        SamplingParams(top_k=20, top_p=0.95, temperature=0.6),
        SamplingParams(top_k=2**31 - 1),
        SamplingParams(top_p=0.5, min_p=0.01),
    ]
    together = kept(logits, wishes)
    for s, params in enumerate(wishes):
        assert kept(logits[s : s + 1], [params]) == [together[s]]
    assert [len(row) for row in together][0::6] == [3, 700]
    assert len(together[1]) > truncation.FEW  # so the second, full sort was needed


def test_top_p_counts_what_top_k_has_left_also_beside_a_row_without_top_k(device: str) -> None:
    logits = torch.arange(100.0, device=device)[None].expand(2, -1).contiguous() / 100
    few = SamplingParams(top_k=10, top_p=0.45)
    first, _ = kept(logits, [few, SamplingParams(top_p=0.9)])
    assert len(first) == 5


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_the_same_tokens_stay_as_in_transformers(temperature: float) -> None:
    logits = torch.randn(6, 500, generator=torch.Generator().manual_seed(4)) * 3
    scores = transformers.TemperatureLogitsWarper(temperature)(None, logits)
    cases = [
        (SamplingParams(temperature=temperature, top_k=20), [transformers.TopKLogitsWarper(20)]),
        (SamplingParams(temperature=temperature, top_p=0.9), [transformers.TopPLogitsWarper(0.9)]),
        (SamplingParams(temperature=temperature, min_p=0.1), [transformers.MinPLogitsWarper(0.1)]),
        (
            SamplingParams(temperature=temperature, top_k=30, top_p=0.8),
            [transformers.TopKLogitsWarper(30), transformers.TopPLogitsWarper(0.8)],
        ),
        (
            SamplingParams(temperature=temperature, min_p=0.05, top_k=9, top_p=0.8),
            [
                transformers.MinPLogitsWarper(0.05),
                transformers.TopKLogitsWarper(9),
                transformers.TopPLogitsWarper(0.8),
            ],
        ),
    ]
    for params, warpers in cases:
        warped = scores
        for warper in warpers:
            warped = warper(None, warped)
        wanted = [set(row.isfinite().nonzero()[:, 0].tolist()) for row in warped]
        assert kept(logits, [params] * 6) == wanted


def test_values_too_small_for_float32_still_keep_the_best() -> None:
    params = SamplingParams(top_p=1e-60, min_p=1e-60)
    assert kept(torch.tensor([[1.0, 2.0, 0.0]]), [params]) == [{1}]


@pytest.mark.parametrize("count", [1, 255, 256, 257, 900])
def test_descending_is_the_beginning_of_a_sort(count: int, device: str) -> None:
    logits = torch.randn(3, 900, generator=torch.Generator().manual_seed(5)).to(device)
    wanted = logits.sort(-1, descending=True).values[:, :count]
    assert truncation.descending(logits, count).tolist() == wanted.tolist()
