"""Moves a step's small host arrays to the worker's device in one copy that nobody waits for."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

LEAST = 1 << 14  # bytes of a buffer
ALIGNED = 8  # bytes; every array begins at a multiple


class Buffer(NamedTuple):
    """Pinned memory, and the event behind the last copy from it."""

    memory: Tensor  # [bytes] uint8
    copied: torch.cuda.Event


class Staging:
    """Arrays in, tensors of the same types on the device out.

    On CUDA all arrays of a call travel in one copy from pinned memory: a copy from pageable memory
    would wait for the step that is running. Buffers are used again once their copy is over. While
    it is not, because steps are still queued before it, there is another buffer: no call waits.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._buffers: deque[Buffer] = deque()  # the one that was used longest ago comes first

    def send(self, *arrays: NDArray[Any]) -> Sequence[Tensor]:
        """Each array on the device. On the CPU they are shared, not copied: write to none."""
        if self.device.type == "cpu":
            return [torch.from_numpy(array) for array in arrays]
        starts, size = [], 0
        for array in arrays:
            starts.append(size)
            size += -(-array.nbytes // ALIGNED) * ALIGNED
        buffer = self._free(size)
        host = buffer.memory.numpy()
        for start, array in zip(starts, arrays, strict=True):
            part = host[start : start + array.nbytes].view(array.dtype)
            np.copyto(part.reshape(array.shape), array)
        sent = buffer.memory[:size].to(self.device, non_blocking=True)
        self._used(buffer)
        return [
            sent[start : start + array.nbytes].view(_torch_type(array.dtype)).view(array.shape)
            for start, array in zip(starts, arrays, strict=True)
        ]

    def _free(self, size: int) -> Buffer:
        """A buffer of `size` bytes that no copy reads any more."""
        if self._buffers and self._buffers[0].copied.query():
            buffer = self._buffers.popleft()
            if buffer.memory.numel() >= size:
                return buffer
        room = max(LEAST, 1 << (size - 1).bit_length())
        return Buffer(torch.empty(room, dtype=torch.uint8, pin_memory=True), torch.cuda.Event())

    def _used(self, buffer: Buffer) -> None:
        buffer.copied.record()
        self._buffers.append(buffer)


@lru_cache
def _torch_type(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
