"""The eager runner: three stages in order, and none for what nobody asks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from core.interfaces import Sampled, Step
from plugins.runners.eager import Eager


class Spy(Step):
    """Writes down what is called, and whether gradients are off."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def forward(self, batch: Any) -> torch.Tensor:
        self.calls.append("forward")
        assert torch.is_inference_mode_enabled()
        return torch.full((3, 2), 7.0)

    def logits(self, hidden: torch.Tensor, batch: Any) -> torch.Tensor:
        self.calls.append("logits")
        return hidden[batch.sample_index] + 1

    def sample(self, logits: torch.Tensor, batch: Any) -> Sampled:
        self.calls.append("sample")
        assert torch.equal(logits, torch.full((len(batch.sample_index), 2), 8.0))
        return Sampled(ids=batch.sample_index + 100)


@pytest.fixture
def runner() -> Eager:
    runner = Eager(Eager.Options())
    runner.prepare(Spy(), None)  # type: ignore[arg-type]
    return runner


def test_a_step_is_forward_logits_sample(runner):
    hidden, sampled = runner.run(SimpleNamespace(sample_index=torch.tensor([0, 2])))
    assert torch.equal(hidden, torch.full((3, 2), 7.0))
    assert sampled.ids.tolist() == [100, 102]
    assert runner.step.calls == ["forward", "logits", "sample"]


def test_chunks_that_end_nowhere_pay_no_head(runner):
    hidden, sampled = runner.run(SimpleNamespace(sample_index=torch.tensor([], dtype=torch.int64)))
    assert hidden.shape == (3, 2)
    assert sampled.ids.shape == (0,)
    assert runner.step.calls == ["forward"]
