"""Drawing before the first request: whatever a step may launch has been launched."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from core.sampling.table import SamplingTable

Launch = tuple[bool, torch.dtype, bool]  # many rows, type of the logits, with floors


class Noted:
    """A kernel set that draws, and remembers how."""

    def __init__(self) -> None:
        self.draws: set[Launch] = set()
        self.floored: set[tuple[bool, torch.dtype]] = set()

    def draw(
        self, logits: Tensor, columns: Tensor, index: Tensor, positions: Tensor,
        floor: Tensor | None,
    ) -> Tensor:  # fmt: skip
        assert logits.shape == (len(index), 301)
        assert len(index) == len(positions)
        self.draws.add((len(index) > 16, logits.dtype, floor is not None))
        return torch.zeros(len(index), dtype=torch.int64)

    def floors(self, logits: Tensor, columns: Tensor, index: Tensor) -> Tensor:
        self.floored.add((len(index) > 16, logits.dtype))
        return torch.zeros(len(index))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 3, 500])
def test_every_way_to_draw_is_tried(dtype: torch.dtype, rows: int) -> None:
    kernels = Noted()
    SamplingTable(rows, 301, 20, "cpu", kernels=kernels).warm(dtype)
    kinds, sizes = {dtype, torch.float32}, {False, rows > 16}
    assert kernels.draws == {(m, k, f) for m in sizes for k in kinds for f in (False, True)}
    assert kernels.floored == {(m, k) for m in sizes for k in kinds}


def test_without_kernels_there_is_nothing_to_try() -> None:
    SamplingTable(3, 301, 20, "cpu").warm(torch.float32)
