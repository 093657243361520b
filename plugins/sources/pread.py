"""The source `pread`: safetensors files, read by several threads into memory of the caller's."""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from threading import Lock, local

import numpy as np
import torch
from torch import Tensor

from core.errors import UserError
from core.parallel import Index, Source
from core.parallel.recipe import Box, extent_of, length, slices, whole
from core.parallel.sources import TORCH_TYPES
from plugins.sources.folder import locate

SCRATCH = 4 << 20  # bytes that a thread reads at a time to pick columns from
WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}  # by bytes: values do not matter

Region = np.ndarray


class PreadSource(Source):
    """Reads what a recipe asks for, at its place in the file, without a mapping.

    Row ranges are read as they lie. Column ranges are picked from whole rows in small scratch
    memory. A file that has become shorter is a UserError, where a mapping would end the process.
    """

    concurrent = True

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._tensors = locate(path)
        self._files: dict[Path, _File] = {}
        self._opening = Lock()
        self._scratch = local()

    @classmethod
    def open(cls, path: Path | None, expected: Index, *, seed: int = 0) -> PreadSource:
        if path is None:
            raise UserError("The source pread needs a checkpoint: set model.path to its folder.")
        if not hasattr(os, "preadv"):
            raise UserError("This system cannot read at a place in a file. Say model.weights=mmap.")
        return cls(path)

    def index(self) -> Index:
        return {name: (t.shape, t.dtype) for name, (_, t) in self._tensors.items()}

    def read(self, name: str, box: Box) -> Tensor:
        _, stored = self._tensors[name]
        shape = extent_of(box) if box else stored.shape
        out = torch.empty(shape, dtype=TORCH_TYPES[stored.dtype])
        self.read_into(name, box, out)
        return out

    def read_into(self, name: str, box: Box, out: Tensor) -> None:
        path, stored = self._tensors[name]
        shape, box = stored.shape, box or whole(stored.shape)
        assert out.is_contiguous(), name
        assert out.numel() == math.prod(extent_of(box)), (name, box, out.shape)
        self.count(out)
        if not out.numel():
            return
        # words as large as the elements, for types that numpy does not know
        words = out.reshape(-1).view(torch.uint8).numpy().view(WORDS[out.element_size()])
        try:
            file = self._file(path)
            self._read(file, file.data + stored.start, shape, box, words.reshape(extent_of(box)))
        except (OSError, EOFError) as error:
            raise UserError(f"{path}: tensor {name!r} cannot be read: {error}.") from error

    def _read(self, file: _File, start: int, shape: tuple[int, ...], box: Box, out: Region) -> None:
        """Read a box of the tensor that begins at byte `start` into `out`, of the box's shape."""
        row = out.itemsize * math.prod(shape[1:])
        first, stop, step = (*box[0], 1)[:3] if box else (0, 1, 1)
        if step == 1 and box[1:] == whole(shape[1:]):
            file.read(start + first * row, out)
        elif len(shape) > 2:
            for at, index in enumerate(range(first, stop, step)):
                self._read(file, start + index * row, shape[1:], box[1:], out[at])
        else:
            rows = max(1, SCRATCH // row) * step
            for at in range(first, stop, rows):
                end = min(at + rows, stop)
                block = self._memory((end - at) * row).view(out.dtype).reshape(-1, *shape[1:])
                file.read(start + at * row, block)
                done = (at - first) // step
                part = out[done : done + length((at, end, step))]
                np.copyto(part, block[(slice(None, None, step), *slices(box[1:]))])

    def _memory(self, size: int) -> Region:
        """Scratch memory of this thread."""
        memory: Region | None = getattr(self._scratch, "memory", None)
        if memory is None or len(memory) < size:
            memory = self._scratch.memory = np.empty(max(size, SCRATCH), np.uint8)
        return memory[:size]

    def _file(self, path: Path) -> _File:
        with self._opening:
            if path not in self._files:
                self._files[path] = _File(path)
            return self._files[path]

    def close(self) -> None:
        with self._opening:
            for file in self._files.values():
                file.close()
            self._files.clear()


class _File:
    """One safetensors file. Its header was checked before."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        try:
            header = np.empty(8, np.uint8)
            self.read(0, header)
            self.data = 8 + struct.unpack("<Q", header.tobytes())[0]
        except BaseException:
            self.close()
            raise

    def read(self, start: int, out: Region) -> None:
        """Fill `out`, which is contiguous, from byte `start` on. EOFError when the file ends."""
        left = memoryview(out.reshape(-1).view(np.uint8))
        while left:
            count = os.preadv(self._descriptor, [left], start)
            if count == 0:
                raise EOFError(f"it ends at byte {start}, and {len(left)} more are wanted")
            left, start = left[count:], start + count

    def close(self) -> None:
        os.close(self._descriptor)
