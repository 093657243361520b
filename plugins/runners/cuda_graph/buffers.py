"""Decode steps at fixed addresses: one set of tensors, of which every size uses the first rows."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import torch

from core.sampling import columns
from core.sampling.static_rows import StaticRows
from core.types import AttentionMetadata, Batch
from plugins.runners.cuda_graph.mail import Mail

if TYPE_CHECKING:
    from torch import Tensor

    from core.interfaces import AttentionBackend, Step
    from core.types import Decodes, Limits


class CapturedRows(StaticRows):
    """Rows that keep what the sampler drew: what records it, looks at the logits first."""

    drawn: Tensor  # [S] ids
    truncated = False

    def record(self, ids: Tensor) -> None:
        self.drawn = ids

    @property
    def needs(self) -> int:
        return columns.RANDOM | (columns.TRUNCATION if self.truncated else 0)

    def with_truncation(self) -> CapturedRows:
        """The same rows at the same addresses, which may have top_k, top_p and min_p."""
        rows = copy(self)
        rows.truncated = True
        return rows


class Buffers:
    """What all sizes share. Memory is taken once, for `most` requests."""

    def __init__(self, step: Step, limits: Limits, most: int) -> None:
        tables = step.rows
        device, pages = tables.history.device, tables.page_table.shape[1]
        self.step, self.limits = step, limits
        self.mail = Mail(most, tables.nobody, device)
        self.ids = torch.zeros(most, dtype=torch.int32, device=device)
        self.tokens, self.positions, self.slots = (
            torch.zeros(most, dtype=torch.int64, device=device) for _ in range(3)
        )
        self.context_len = torch.zeros(most, dtype=torch.int32, device=device)
        self.page_table = torch.zeros(most, pages, dtype=torch.int32, device=device)
        self.query_start = torch.arange(most + 1, dtype=torch.int32, device=device)
        self.every = torch.arange(most, dtype=torch.int64, device=device)


class StaticBatch:
    """A step of `size` requests. `mail` brings one from the host; all else is the device's work."""

    def __init__(self, buffers: Buffers, size: int) -> None:
        b, step, longest = buffers, buffers.step, buffers.limits.max_length
        self.tables, self.size = step.rows, size
        self.vocab_size = buffers.limits.vocab_size
        self.mail = b.mail
        self.ids = b.ids[:size]  # [size] what came of the step; -1: no token
        self.rows = CapturedRows(step.sampling, size)
        self.meta = AttentionMetadata(
            query_start=b.query_start[: size + 1],
            context_len=b.context_len[:size],
            page_table=b.page_table[:size],
            slots=b.slots[:size],
            max_query=1,
            max_context=longest,
            decodes=size,
            query_lens=[1] * size,
            context_lens=[longest] * size,
        )
        self.batch = Batch(
            tokens=b.tokens[:size],
            positions=b.positions[:size],
            attention=self.meta,
            sample_index=b.every[:size],
            rows=self.rows,
            captured=True,
        )
        self.private: dict[AttentionBackend, Any] = {}
        for backend in step.backends:
            state = backend.static(buffers.limits, size)
            if state is not None:
                self.private[backend] = state

    def plan(self, backends: Sequence[AttentionBackend]) -> None:
        """What backends do once a step, of those that have no state of their own."""
        self.meta.private = dict(self.private) or None
        for backend in backends:
            if backend not in self.private:
                backend.plan(self.meta)

    def refresh(self, decodes: Decodes) -> None:
        """Bring the backends' own state up to date, when the tensors already are."""
        meta, count = self.meta, len(decodes.rows)
        meta.decodes = count
        meta.query_lens = [1] * count
        meta.context_lens = decodes.context_lens.tolist()
        meta.max_context = max(meta.context_lens)
        for backend, state in self.private.items():
            backend.refresh(state, meta)
