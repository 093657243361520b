"""Steps with prompts at fixed addresses: one set of tensors, of which every size uses the first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from core.types import AttentionMetadata, Batch

if TYPE_CHECKING:
    from torch import Tensor

    from core.interfaces import Step
    from core.types import Limits


class PromptBuffers:
    """What all sizes share. Memory is taken once, for so many tokens and requests."""

    def __init__(self, step: Step, limits: Limits, tokens: int, requests: int) -> None:
        device, pages = step.rows.history.device, step.rows.page_table.shape[1]
        self._longest = limits.max_length
        nobody = np.zeros(0, np.int32)

        def zeros(shape: int | Sequence[int], dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.tokens, self.positions, self.slots = (zeros(tokens, torch.int64) for _ in range(3))
        self.query_start = zeros(requests + 1, torch.int32)
        self.context_len = zeros(requests, torch.int32)
        self.page_table = zeros((requests, pages), torch.int32)
        self.sample_index = zeros(0, torch.int64)
        self.wanted = zeros(min(limits.max_num_seqs, tokens), torch.int64)
        self.rows = step.sampling.select(nobody, nobody)

    def padding(self, tokens: int, requests: int, whole: bool = True) -> Batch:
        """A step of so many tokens and requests, all of them nothing but padding at first.

        `whole`: hidden states of all tokens are asked for, and not only of as many tokens as
        requests may be sampled.
        """
        self.slots.fill_(-1)
        self.context_len.zero_()
        self.query_start.zero_()
        return Batch(
            tokens=self.tokens[:tokens],
            positions=self.positions[:tokens],
            attention=AttentionMetadata(
                query_start=self.query_start[: requests + 1],
                context_len=self.context_len[:requests],
                page_table=self.page_table[:requests],
                slots=self.slots[:tokens],
                max_query=tokens,
                max_context=self._longest,
                decodes=0,
            ),
            sample_index=self.sample_index,
            rows=self.rows,
            wanted=None if whole or len(self.wanted) >= tokens else self.wanted,
            captured=True,
        )
