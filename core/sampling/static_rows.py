"""Sampled rows at fixed addresses, for a step that is captured once and replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from core.sampling import columns
from core.sampling.rows import SampleRows

if TYPE_CHECKING:
    from torch import Tensor

    from core.sampling.table import SamplingTable


class StaticRows(SampleRows):
    """Stand in for the rows of any step that are `plain`, and of at most this size.

    Capture the sampler with these rows; before each replay `load` the rows of the step. The table's
    columns and history keep their addresses too, so nothing else has to be copied. What the host
    knows about single requests (params, admissions) is not there.
    """

    def __init__(self, table: SamplingTable, size: int) -> None:
        nobody = np.zeros(size, np.int32)
        super().__init__(table, nobody, nobody, {})
        self._index = torch.zeros(size, dtype=torch.int64, device=table.device)
        self._positions = torch.zeros(size, dtype=torch.int64, device=table.device)

    def load(self, rows: SampleRows) -> None:
        """Take over the rows of a step; what is beyond them stays as it was."""
        assert rows.plain
        self._index[: len(rows)].copy_(rows.index)
        self.positions[: len(rows)].copy_(rows.positions)

    def remember(self, key: Any, make: Callable[[], Any]) -> Any:
        """Always `make()`: what is remembered while capturing would be constant ever after."""
        return make()

    @property
    def needs(self) -> int:
        """Greedy rows are random rows of temperature 0."""
        return columns.RANDOM

    @property
    def index(self) -> Tensor:
        return self._index
