"""What the device has made, on its way to the host, and the event behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from torch import Tensor

    from core.types import Ints

LEAST = 1 << 12  # bytes; with few sizes of memory there is soon one that is free


def to_host(tensor: Tensor) -> Tensor:
    """The tensor, or a copy in pinned memory that is complete after an event recorded now.

    Nothing waits for the copy, which keeps the dtype because casting would. Once nobody holds the
    memory and the copy is over, torch's allocator gives it out again: making new memory may wait.
    """
    if not tensor.is_cuda:
        return tensor
    size = tensor.numel() * tensor.itemsize
    memory = torch.empty(max(size, LEAST), dtype=torch.uint8, pin_memory=True)
    return memory[:size].view(tensor.dtype).view(tensor.shape).copy_(tensor, non_blocking=True)


class Landed:
    """Ids that lie in memory of the host once what was launched before is over."""

    def __init__(self, ids: Tensor) -> None:
        """`ids` [S], whole numbers: memory of the host. It may be written again after `keep`."""
        self._memory: Tensor | None = ids
        self._kept: Ints | None = None
        self._over: torch.cuda.Event | None = None
        if ids.is_pinned():
            self._over = torch.cuda.Event()
            self._over.record()

    @classmethod
    def of(cls, ids: Tensor) -> Landed:
        """Send ids [S] here from where they are, which may be written again by later launches."""
        return cls(to_host(ids) if ids.is_cuda else ids.to("cpu", copy=True))

    def done(self) -> bool:
        """Whether they are there."""
        return self._kept is not None or self._over is None or self._over.query()

    def keep(self) -> Ints:
        """Wait for them, and take them out of that memory. May be called again. -> [S] int32"""
        if self._kept is None:
            assert self._memory is not None
            if self._over is not None:
                self._over.synchronize()
            self._kept = self._memory.numpy().astype(np.int32)  # a copy, always
            self._memory = None
        return self._kept
