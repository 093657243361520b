"""Components that compute nothing: what is left of a step is the host's work."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from core.interfaces import AttentionBackend, Runner, Sampled, Step
from core.types import AttentionMetadata, Batch, KVLayer, Limits


class NoRunner(Runner):
    """Samples token 0 for everybody, without a model."""

    @dataclass
    class Options: ...

    def prepare(self, step: Step, limits: Limits) -> None:
        return None

    def run(self, batch: Batch) -> tuple[Tensor, Sampled]:
        ids = torch.zeros_like(batch.sample_index)
        batch.rows.record(ids)
        return batch.tokens.new_empty(len(batch.tokens), 0), Sampled(ids)


class NoAttention(AttentionBackend):
    """Plans nothing; a runner that computes nothing never asks for more."""

    @dataclass
    class Options: ...

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, cache: KVLayer, meta: AttentionMetadata
    ) -> Tensor:
        return q
