"""Moves a step's small host arrays to the worker's device in one copy that nobody waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from torch import Tensor

    from core.types import Ints

BUFFERS = 4  # more than the steps in flight, so a buffer is never overwritten while it is copied


class Staging:
    """int32 arrays in, int32 tensors on the device out."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pinned: list[Tensor] = []
        self._copied: list[torch.cuda.Event | None] = [None] * BUFFERS
        self._turn = 0

    def send(self, *arrays: Ints) -> Sequence[Tensor]:
        """Each array on the device. On the CPU they are shared, not copied: do not write to them.

        On CUDA all arrays travel in one copy from pinned memory: a copy from pageable memory would
        wait for the step that is running.
        """
        if self.device.type == "cpu":
            return [torch.from_numpy(array) for array in arrays]
        sizes = [array.size for array in arrays]
        buffer = self._buffer(sum(sizes))
        host = buffer[: sum(sizes)]
        np.concatenate([array.reshape(-1) for array in arrays], out=host.numpy())
        sent = host.to(self.device, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._copied[self._turn] = event
        return [
            part.view(array.shape) for part, array in zip(sent.split(sizes), arrays, strict=True)
        ]

    def _buffer(self, size: int) -> Tensor:
        self._turn = (self._turn + 1) % BUFFERS
        if not self._pinned or self._pinned[0].numel() < size:
            self._copied = [None] * BUFFERS
            room = max(size, 4096) * 2
            self._pinned = [
                torch.empty(room, dtype=torch.int32, pin_memory=True) for _ in range(BUFFERS)
            ]
        if (event := self._copied[self._turn]) is not None:
            event.synchronize()
        return self._pinned[self._turn]
