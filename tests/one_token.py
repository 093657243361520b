"""A step for tests of runners: real tables, and a model that always wants one token."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from core.interfaces import Sampled
from core.parallel import Solo
from core.sampling import columns
from core.sampling.static_rows import StaticRows
from core.sampling.table import SamplingTable
from core.types import Limits
from core.worker.rows import RequestRows
from core.worker.staging import Staging

ROWS, PAGE, LENGTH, VOCAB = 13, 4, 50, 37


class OneToken:
    """Token 5, or 6 where rows truncate, and 10 more where it was not captured."""

    comm = Solo()

    def __init__(self, limits: Limits, device: str = "cpu") -> None:
        self.backends: list[Any] = []
        self.sampler = SimpleNamespace(graphable=True, graphable_truncation=False)
        self.rows = RequestRows(limits, Staging(torch.device(device)))
        self.sampling = SamplingTable(
            limits.max_num_seqs + 1, VOCAB, LENGTH, device, history=self.rows.history
        )

    def forward(self, batch: Any) -> torch.Tensor:
        return torch.zeros(len(batch.tokens), 3)

    def logits(self, hidden: torch.Tensor, batch: Any) -> torch.Tensor:
        return torch.eye(VOCAB)[torch.full((len(hidden),), 5)]

    def sample(self, logits: torch.Tensor, batch: Any) -> Sampled:
        ids = logits.argmax(-1) + (batch.rows.needs & columns.TRUNCATION != 0)
        if not isinstance(batch.rows, StaticRows):
            ids += 10
        batch.rows.record(ids)
        return Sampled(ids)


def limits(**changes: int) -> Limits:
    sizes = {"max_num_seqs": ROWS, "max_num_batched_tokens": 64, "max_length": LENGTH}
    return Limits(**(sizes | changes), page_size=PAGE, pages=40, vocab_size=VOCAB)
