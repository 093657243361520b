"""Loading onto a GPU: threads read into pinned memory while earlier pieces travel to the device."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, nullcontext
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

import torch

from core.parallel.loading import fill, nbytes, pieces
from core.parallel.recipe import Box, Copy, Recipe, extent_of
from core.parallel.sources import TORCH_TYPES, Source

if TYPE_CHECKING:
    from torch import Tensor

    from core.parallel.index import TensorInfo
    from core.parallel.loading import Progress

PIECE = 16 << 20  # bytes that are read at a time
READERS = 8  # threads; one copies about 10 GB/s out of the system's cache


class Piece(NamedTuple):
    """A part of a copy: a region of a checkpoint tensor, and where it goes."""

    name: str
    box: Box
    shape: tuple[int, ...]  # of the region, in the checkpoint's order of dims
    dtype: torch.dtype
    target: Tensor
    perm: tuple[int, ...] | None

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * torch.Size(self.shape).numel()


class Slot:
    """Memory for one piece on its way, and the end of the copy that reads it."""

    def __init__(self, size: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.memory = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        self.copied = torch.cuda.Event() if pinned else None

    def wait(self) -> None:
        if self.copied is not None:
            self.copied.synchronize()

    def sent(self) -> None:
        if self.copied is not None:
            self.copied.record()


class Streaming:
    """Executes a recipe: the same regions and bytes as `loading.load`, several at a time.

    Copies run on a stream of their own at the speed of the bus; casts and changes of the order of
    dims are made on the device. A `Call` is computed on the host, as ever.
    """

    def __init__(self, source: Source, device: torch.device, readers: int | None = None) -> None:
        """`readers`: threads, for a source that allows several."""
        self.source, self.device = source, device
        most = readers or min(READERS, os.cpu_count() or 1)
        self._readers = most if source.concurrent else 1
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._free: SimpleQueue[Slot] = SimpleQueue()

    def load(
        self, recipe: Recipe, params: Mapping[str, Tensor], progress: Progress | None = None
    ) -> None:
        """Fill parameters on the device. All of it is there when this returns.

        The first error of any thread ends the others and is raised.
        """
        total = sum(nbytes(op, params) for op in recipe)
        cut: list[Piece] = []
        whole, index = 0, self.source.index()
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self.device))
        for op in recipe:
            region = params[op.dst].data[tuple(slice(*extent) for extent in op.dst_box)]
            if isinstance(op, Copy):
                cut += _cut(op, region, index[op.src])
            else:
                with self._on_stream():
                    fill(op, region, self.source)
                whole += nbytes(op, params)
        size = max((piece.nbytes for piece in cut), default=0)
        for _ in range(min(2 * self._readers, len(cut))):
            self._free.put(Slot(max(size, 1), self.device))
        with ThreadPoolExecutor(self._readers, "plait loading") as pool:
            sizes = {pool.submit(self._move, piece): piece.target.nbytes for piece in cut}
            try:
                self._follow(sizes, whole, total, progress)
            finally:
                pool.shutdown(cancel_futures=True)
        if self._stream is not None:
            self._stream.synchronize()

    def _follow(
        self, sizes: Mapping[Future[None], int], done: int, total: int, progress: Progress | None
    ) -> None:
        for future in as_completed(sizes):
            future.result()
            done += sizes[future]
            if progress is not None:
                progress(done, total)

    def _move(self, piece: Piece) -> None:
        slot = self._free.get()
        try:
            slot.wait()
            host = slot.memory[: piece.nbytes].view(piece.dtype).view(piece.shape)
            self.source.read_into(piece.name, piece.box, host)
            with self._on_stream(), torch.no_grad():
                self._send(host, piece)
                slot.sent()
        finally:
            self._free.put(slot)

    def _send(self, host: Tensor, piece: Piece) -> None:
        target, arrived = piece.target, host
        if piece.perm or piece.dtype != target.dtype:
            arrived = host.to(self.device, non_blocking=True)
        arrived = arrived.permute(piece.perm) if piece.perm else arrived
        if not piece.box:
            arrived = arrived.reshape(target.shape)
        assert arrived.shape == target.shape, (piece.name, arrived.shape, target.shape)
        target.copy_(arrived, non_blocking=True)

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


def _cut(op: Copy, region: Tensor, stored: TensorInfo) -> list[Piece]:
    shape, dtype = stored[0], TORCH_TYPES[stored[1]]
    return [
        Piece(op.src, box, extent_of(box) if box else shape, dtype, target, op.perm)
        for box, target in pieces(op, region, PIECE // dtype.itemsize)
    ]
