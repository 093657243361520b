"""What a worker knows of each running request: its tokens and its page table, on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.types import Admission, Limits, StepPlan
    from core.worker.staging import Staging

OVERRUN = 8  # columns past the longest request, for tokens sampled before its end was noticed


class RequestRows:
    """One row per running request, for its whole stay; a plan brings only what is new.

    Sampled ids are written into `history` on the device, so the next step finds them there and
    the host never has to know them first. The last row, `nobody`, is no request's: the padding of
    captured steps reads and writes it.
    """

    def __init__(self, limits: Limits, staging: Staging) -> None:
        length, pages = self._widths(limits)
        self.staging = staging
        self.page_size = limits.page_size
        self.nobody = limits.max_num_seqs
        size: Any = {"dtype": torch.int32, "device": staging.device}
        self.history = torch.zeros(self.nobody + 1, length, **size)  # [R + 1, length]
        self.page_table = torch.zeros(self.nobody + 1, pages, **size)  # [R + 1, pages]

    @staticmethod
    def _widths(limits: Limits) -> tuple[int, int]:
        length = limits.max_length + OVERRUN
        return length, -(-length // limits.page_size)

    @classmethod
    def bytes(cls, limits: Limits) -> int:
        """What the tables of an engine with these limits take on its device."""
        return (limits.max_num_seqs + 1) * sum(cls._widths(limits)) * torch.int32.itemsize

    def admit(self, admitted: Sequence[Admission]) -> None:
        """Take in the tokens of admitted requests."""
        if admitted:
            lengths = np.array([len(a.tokens) for a in admitted], np.int32)
            owners = np.repeat(np.array([a.row for a in admitted], np.int32), lengths)
            tokens = np.concatenate([a.tokens for a in admitted]).astype(np.int32, copy=False)
            self._write(self.history, owners, _within(lengths), tokens)

    def append(self, plan: StepPlan) -> None:
        """Take in the pages that a plan appends to tables."""
        if len(plan.pages):
            owners = np.repeat(plan.rows, plan.page_counts)
            columns = np.repeat(plan.page_starts, plan.page_counts) + _within(plan.page_counts)
            self._write(self.page_table, owners, columns, plan.pages)

    def _write(
        self,
        table: torch.Tensor,
        rows: np.ndarray[tuple[int, ...], np.dtype[np.int32]],
        columns: np.ndarray[tuple[int, ...], np.dtype[np.int32]],
        values: np.ndarray[tuple[int, ...], np.dtype[np.int32]],
    ) -> None:
        r, c, v = self.staging.send(rows, columns, values)
        table[r, c] = v


def _within(counts: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> np.ndarray:
    """[2, 0, 3] -> [0, 1, 0, 1, 2]: each element's place within its group."""
    ends = np.cumsum(counts)
    return (np.arange(int(ends[-1])) - np.repeat(ends - counts, counts)).astype(np.int32)
