"""A row without a token is told apart from its neighbours, in words."""

from __future__ import annotations

import math

import pytest
import torch

from core.sampling.outcome import errors, outcome

WHY = {
    -math.inf: "no token is possible: the logits are -inf everywhere",
    math.nan: "among the logits is nan",
    math.inf: "among the logits is inf",
}


def test_rows_with_a_token_have_no_error_and_keep_it(device: str) -> None:
    logits = torch.tensor([[0.0, -math.inf, 2.0], [1.0, 0.0, -1.0]], device=device)
    found = outcome(torch.tensor([2, 1], device=device), logits)
    assert found.ids.tolist() == [2, 1]
    assert not found.errors


@pytest.mark.parametrize("value", WHY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_whose_token_has_no_finite_logit_is_named(
    device: str, value: float, dtype: torch.dtype
) -> None:
    logits = torch.zeros(3, 4, dtype=dtype, device=device)
    logits[1, 3] = value
    found = outcome(torch.tensor([3, 3, 2], device=device), logits)
    assert found.ids.tolist() == [3, 0, 2]
    assert found.errors is not None
    assert list(found.errors) == [1]
    assert WHY[value] in found.errors[1]


def test_an_id_below_zero_stands_for_no_token(device: str) -> None:
    found = outcome(torch.tensor([-1, 2], device=device), torch.zeros(2, 4, device=device))
    assert found.ids.tolist() == [0, 2]
    assert list(found.errors or {}) == [0]


def test_a_row_that_was_blamed_before_keeps_its_sentence() -> None:
    assert errors(torch.tensor([math.nan, 1.0]), {0: "my word"}) == {0: "my word"}


def test_ids_may_be_whole_numbers_of_any_type(device: str) -> None:
    logits = torch.tensor([[0.0, 2.0], [1.0, -math.inf]], device=device)
    found = outcome(torch.tensor([1, 1], dtype=torch.int32, device=device), logits)
    assert found.ids.tolist() == [1, 0]
    assert list(found.errors or {}) == [1]
