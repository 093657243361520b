"""Runs a step as it is written, one operation after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from core.interfaces import Runner, Sampled, Step
from core.types import Batch, Limits


class Eager(Runner):
    """No preparation and no state; right everywhere, and the twin of every other runner."""

    def prepare(self, step: Step, limits: Limits) -> None:
        self.step = step

    @torch.inference_mode()
    def run(self, batch: Batch) -> tuple[Tensor, Sampled]:
        return self.step.run(batch)
