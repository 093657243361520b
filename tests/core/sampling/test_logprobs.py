"""Log probabilities against float64, their ranks, and their order where logits tie."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.sampling import logprobs
from core.types import TokenLogprobs


def random_logits(rows: int, size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)) * 4


def prompt_logprobs(logits: torch.Tensor, tokens: torch.Tensor, count: int) -> list[TokenLogprobs]:
    scores = logprobs.prompt_scores(logits, tokens, count)
    return logprobs.listed(tokens, scores, [count] * len(tokens))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_are_those_of_a_float64_log_softmax(dtype: torch.dtype, device: str) -> None:
    logits = random_logits(5, 300).to(dtype)
    tokens = torch.tensor([0, 7, 299, 150, 3])
    wanted = logits.double().log_softmax(-1)
    found = logprobs.listed(
        tokens, logprobs.scores(logits.to(device), tokens.to(device), 4), [4] * 5
    )
    for row, entry in zip(wanted, found, strict=True):
        assert entry.logprob == pytest.approx(float(row[entry.token]), abs=1e-5)
        assert entry.rank == 1 + int((row > row[entry.token]).sum())
        assert entry.top_logprobs == pytest.approx(row.topk(4).values.tolist(), abs=1e-5)
        assert entry.top_logprobs == pytest.approx([float(row[i]) for i in entry.top_ids], abs=1e-5)


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from([-math.inf, -2.5, -0.0, 0.0, 1.0, 1.5]), min_size=1, max_size=40),
    st.integers(0, 40),
)
def test_the_best_are_ordered_by_logit_and_then_by_id(values: list[float], count: int) -> None:
    count = min(count, len(values))
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    assert logprobs.best(torch.tensor([values]), count).tolist() == [order[:count]]


def test_the_greedy_token_is_always_the_first_of_the_best() -> None:
    logits = torch.zeros(1, 1000)
    logits[0, 300:900] = 5
    assert logprobs.best(logits, 1).tolist() == [[int(logits.argmax())]]


def test_tokens_that_tie_with_the_chosen_do_not_lower_its_rank() -> None:
    logits = torch.tensor([[3.0, 5.0, 5.0, 1.0]])
    assert logprobs.scores(logits, torch.tensor([2]), 0).rank.tolist() == [1]
    assert logprobs.scores(logits, torch.tensor([0]), 0).rank.tolist() == [3]


def test_minus_one_gives_the_whole_vocabulary_and_each_row_what_it_asked_for() -> None:
    tokens = torch.tensor([1, 2, 3])
    found = logprobs.listed(tokens, logprobs.scores(random_logits(3, 50), tokens, -1), [0, -1, 2])
    assert [len(entry.top_ids) for entry in found] == [0, 50, 2]
    assert sorted(found[1].top_ids) == list(range(50))
    assert sum(map(math.exp, found[1].top_logprobs)) == pytest.approx(1, abs=1e-5)


def test_an_impossible_token_has_minus_infinity() -> None:
    found = prompt_logprobs(torch.tensor([[0.0, -math.inf]]), torch.tensor([1]), 1)
    assert found[0].logprob == -math.inf
    assert found[0].rank == 2


def test_prompt_logprobs_do_not_depend_on_how_many_are_taken_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logits, tokens = random_logits(7, 100), torch.arange(7)
    whole = prompt_logprobs(logits, tokens, 3)
    monkeypatch.setattr(logprobs, "BLOCK", 200)
    assert prompt_logprobs(logits, tokens, 3) == whole
    assert [entry.token for entry in whole] == list(range(7))
