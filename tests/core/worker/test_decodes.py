"""Which plans are steps that only decode, and their columns."""

from __future__ import annotations

import numpy as np
import pytest

from core.sampling.table import SamplingTable
from core.types import StepPlan
from core.worker.batching import decodes

PAGE = 4
NONE = np.zeros(0, np.int32)


def plan(**columns: list[int]) -> StepPlan:
    """Three requests that decode at positions 5, 8 and 2; the second begins a page, number 17."""
    usual = {
        "rows": [4, 1, 3],
        "starts": [5, 8, 2],
        "counts": [1, 1, 1],
        "sample": [1, 1, 1],
        "page_starts": [2, 2, 1],
        "page_counts": [0, 1, 0],
        "pages": [17],
    }
    made = {name: np.array(column, np.int32) for name, column in (usual | columns).items()}
    return StepPlan(number=0, released=NONE, **made)


def columns_of(made: StepPlan):
    return decodes(made, PAGE, SamplingTable(8, 50, 64, "cpu"))


def test_columns_of_a_decode_step() -> None:
    found = columns_of(plan())
    assert found.rows.tolist() == [4, 1, 3]
    assert found.context_lens.tolist() == [6, 9, 3]
    assert found.pages.tolist() == [-1, 17, -1]
    assert found.sampled.rows.tolist() == [4, 1, 3]
    assert found.sampled.ends.tolist() == [6, 9, 3]


def test_most_steps_begin_no_page() -> None:
    found = columns_of(plan(page_counts=[0, 0, 0], pages=[]))
    assert found.pages.tolist() == [-1, -1, -1]


@pytest.mark.parametrize(
    "columns",
    [
        {"counts": [1, 1, 2]},  # a prompt, or a part of one
        {"sample": [1, 0, 1]},  # one token of a prompt, with more to come
        # prompts of which the prefix cache gave all but the last token
        {"starts": [5, 8, 4], "page_starts": [2, 2, 0], "page_counts": [0, 0, 2], "pages": [3, 9]},
        {"starts": [5, 8, 2], "page_starts": [2, 2, 0], "page_counts": [0, 0, 1], "pages": [3]},
    ],
)
def test_other_steps_are_none(columns) -> None:
    assert columns_of(plan(**columns)) is None
