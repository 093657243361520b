"""A step on its way: its ids and its errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from core.interfaces import Sampled
from core.types import StepPlan
from core.worker.launched import Launched

NONE = np.zeros(0, np.int32)


def plan(sample: list[int]) -> StepPlan:
    some = np.zeros(len(sample), np.int32)
    return StepPlan(
        number=7,
        rows=some,
        starts=some,
        counts=some + 1,
        sample=np.array(sample, np.int32),
        page_starts=some,
        page_counts=some,
        pages=NONE,
        released=NONE,
    )


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_ids_are_those_of_the_step_whatever_happens_to_their_memory(dtype, device) -> None:
    memory = torch.tensor([5, 6, 7], dtype=dtype, device=device)
    first = Launched(plan([1, 1, 1]), Sampled(memory), {})
    memory.fill_(9)
    second = Launched(plan([1, 1]), Sampled(memory[:2]), {})
    assert first.result().ids.tolist() == [5, 6, 7]
    assert first.done()
    third = Launched(plan([1]), Sampled(memory[:1]), {})
    assert first.result().ids.tolist() == [5, 6, 7]
    assert second.result().ids.tolist() == [9, 9]
    assert third.result().ids.dtype == np.int32


def test_a_row_without_a_token_is_an_error_of_its_request(device) -> None:
    ids = torch.tensor([4, -1, -1], device=device)
    sampled = Sampled(ids, errors={2: "forbidden by all"})
    output = Launched(plan([1, 0, 1, 1]), sampled, {}).result()
    assert output.ids.tolist() == [4, 0, 0]
    assert set(output.errors) == {2, 3}  # places in the plan, not among the sampled
    assert "no token can be drawn" in output.errors[2]
    assert output.errors[3] == "forbidden by all"
