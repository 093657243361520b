"""A step on its way: its ids, its errors, and the memory that they land in."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from core.interfaces import Sampled
from core.types import StepPlan
from core.worker.launched import Landings, Launched

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
    memory, landings = torch.tensor([5, 6, 7], dtype=dtype, device=device), Landings(8)
    first = Launched(plan([1, 1, 1]), Sampled(memory), {}, landings)
    memory.fill_(9)
    second = Launched(plan([1, 1]), Sampled(memory[:2]), {}, landings)
    assert first.result().ids.tolist() == [5, 6, 7]
    assert first.done()
    third = Launched(plan([1]), Sampled(memory[:1]), {}, landings)
    assert first.result().ids.tolist() == [5, 6, 7]
    assert second.result().ids.tolist() == [9, 9]
    assert third.result().ids.dtype == np.int32


def test_a_row_without_a_token_is_an_error_of_its_request(device) -> None:
    ids = torch.tensor([4, -1, -1], device=device)
    sampled = Sampled(ids, errors={2: "forbidden by all"})
    output = Launched(plan([1, 0, 1, 1]), sampled, {}, Landings(8)).result()
    assert output.ids.tolist() == [4, 0, 0]
    assert set(output.errors) == {2, 3}  # places in the plan, not among the sampled
    assert "no token can be drawn" in output.errors[2]
    assert output.errors[3] == "forbidden by all"


def test_landings_are_used_again_after_their_step_is_read_or_forgotten(device) -> None:
    if device == "cpu":
        pytest.skip("ids on the host land nowhere")
    landings, ids = Landings(8), torch.arange(3, device=device)
    used = set()
    for _ in range(5):
        step = Launched(plan([1, 1, 1]), Sampled(ids), {}, landings)
        used.add(step._landing.ids.data_ptr())
        step.result()
    Launched(plan([1, 1, 1]), Sampled(ids), {}, landings)
    assert len(used) == len(landings._free) == 1
