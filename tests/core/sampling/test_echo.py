"""Sampled ids come to the host in order, whoever takes a row meanwhile."""

from __future__ import annotations

import numpy as np
import torch

from core.sampling import columns
from core.sampling.params import SamplingParams
from core.sampling.table import SamplingTable
from core.types import Admission

ASKS = {"structured_outputs": {"choice": ["a"]}}


def admission(row: int, tokens: list[int], prompt: int, **params: object) -> Admission:
    asked = SamplingParams(temperature=0, **params)
    ids = np.array(tokens, np.int32)
    return Admission(row, str(row), ids, prompt, asked, seed=0, stop_ids=frozenset())


def table(device: str) -> SamplingTable:
    return SamplingTable(4, 10, 20, device)


def sample(made: SamplingTable, ids: dict[int, int], ends: list[int]):
    rows = made.select(np.array([*ids], np.int32), np.array(ends, np.int32))
    rows.record(torch.tensor([*ids.values()], device=made.device))
    return rows


def test_what_was_sampled_is_there_in_order(device: str) -> None:
    made = table(device)
    made.admit(
        [admission(0, [1, 2, 3], 3, **ASKS), admission(2, [4], 1), admission(1, [5], 1, **ASKS)]
    )
    sample(made, {0: 7, 2: 8, 1: 9}, [3, 1, 1])
    rows = sample(made, {1: 6, 0: 5}, [2, 4])
    assert list(rows.output(0)) == [9, 6]
    assert list(rows.output(1)) == [7, 5]


def test_a_request_that_comes_back_has_its_output_already(device: str) -> None:
    made = table(device)
    made.admit([admission(0, [1, 2, 7, 8], 2, extra_args={"x": 1})])
    rows = sample(made, {0: 9}, [4])
    assert list(rows.output(0)) == [7, 8, 9]


def test_ids_of_the_last_holder_are_not_for_the_next(device: str) -> None:
    made = table(device)
    made.admit([admission(0, [1], 1, **ASKS)])
    sample(made, {0: 9}, [1])
    made.release(np.array([0], np.int32))
    made.admit([admission(0, [1, 2], 2, **ASKS)])
    rows = sample(made, {0: 3}, [2])
    assert list(rows.output(0)) == [3]


def test_nothing_is_kept_of_requests_that_do_not_ask(device: str) -> None:
    made = table(device)
    made.admit([admission(0, [1], 1, logit_bias={1: 1.0})])
    sample(made, {0: 9}, [1])
    assert not made.needs[0] & columns.HOST
    assert not made.echo._outputs
