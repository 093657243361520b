"""The source `mmap`: safetensors files mapped into memory, read region by region on the host."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

import torch
from torch import Tensor

from core.errors import UserError
from core.parallel import Index, Source
from core.parallel.recipe import Box, slices, volume
from core.parallel.sources import TORCH_TYPES
from plugins.sources.folder import locate
from plugins.sources.headers import Stored


class MmapSource(Source):
    """Reads what a recipe asks for and nothing else, as far as the page cache allows.

    Row ranges touch their own bytes. Column ranges go through whole pages of every row. Once a
    region has been copied its pages are given back, so that the process never looks as large as
    the checkpoint.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._tensors = locate(path)
        self._files: dict[Path, _MappedFile] = {}
        self._last: tuple[_MappedFile, Stored] | None = None

    @classmethod
    def open(cls, path: Path | None, expected: Index, *, seed: int = 0) -> MmapSource:
        if path is None:
            raise UserError("The source mmap needs a checkpoint: set model.path to its folder.")
        return cls(path)

    def index(self) -> Index:
        return {name: (t.shape, t.dtype) for name, (_, t) in self._tensors.items()}

    def read(self, name: str, box: Box) -> Tensor:
        path, stored = self._tensors[name]
        self._forget()
        try:
            if path not in self._files:
                self._files[path] = _MappedFile(path)
            file = self._files[path]
            whole = file.tensor(stored)
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: tensor {name!r} cannot be read: {error}.") from error
        self._last = file, stored
        region = whole[slices(box)] if box else whole
        assert region.numel() == (volume(box) if box else whole.numel()), (name, box)
        self.count(region)
        return region

    def _forget(self) -> None:
        if self._last is not None:
            file, stored = self._last
            file.forget(stored)
            self._last = None

    def close(self) -> None:
        self._last = None
        self._files.clear()  # the mapping ends with the last tensor that looks into it


class _MappedFile:
    """One safetensors file in memory. The header was checked before."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            (header,) = struct.unpack("<Q", file.read(8))
            self.data = 8 + header
            # copy-on-write and never written: torch warns about memory that it could not write
            self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def tensor(self, stored: Stored) -> Tensor:
        dtype = TORCH_TYPES[stored.dtype]
        if stored.start == stored.stop:
            return torch.empty(stored.shape, dtype=dtype)
        count = (stored.stop - stored.start) // dtype.itemsize
        start = self.data + stored.start
        if start % dtype.itemsize:  # the format does not promise alignment
            return torch.frombuffer(
                bytearray(self.map[start : self.data + stored.stop]), dtype=dtype
            ).view(stored.shape)
        return torch.frombuffer(self.map, dtype=dtype, count=count, offset=start).view(stored.shape)

    def forget(self, stored: Stored) -> None:
        """Give the pages that lie wholly within a tensor back to the system's cache."""
        page = mmap.PAGESIZE
        start = -(-(self.data + stored.start) // page) * page
        stop = (self.data + stored.stop) // page * page
        if stop > start and hasattr(self.map, "madvise"):
            self.map.madvise(mmap.MADV_DONTNEED, start, stop - start)
