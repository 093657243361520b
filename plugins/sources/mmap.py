"""The source `mmap`: safetensors files mapped into memory, read region by region on the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from core.errors import UserError
from core.parallel import Index, Source
from core.parallel.recipe import Box, slices, volume
from plugins.sources.folder import locate


class MmapSource(Source):
    """Reads what a recipe asks for and nothing else, as far as the page cache allows.

    Row ranges touch their own bytes. Column ranges go through whole pages of every row.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._tensors = locate(path)
        self._files: dict[Path, Any] = {}

    @classmethod
    def open(cls, path: Path | None, expected: Index, *, seed: int = 0) -> MmapSource:
        if path is None:
            raise UserError("The source mmap needs a checkpoint: set model.path to its folder.")
        return cls(path)

    def index(self) -> Index:
        return {name: (t.shape, t.dtype) for name, (_, t) in self._tensors.items()}

    def read(self, name: str, box: Box) -> Tensor:
        file, stored = self._tensors[name]
        try:
            if file not in self._files:
                self._files[file] = safe_open(file, framework="pt", device="cpu")
            # an empty index is refused for tensors without dims; the ellipsis means all of it
            index: Any = slices(box) if box else ...
            region: Tensor = self._files[file].get_slice(name)[index]
        except (SafetensorError, OSError) as error:
            raise UserError(f"{file}: tensor {name!r} cannot be read: {error}.") from error
        count = volume(box) if box else region.numel()
        assert region.numel() == count, (name, stored.shape, box)
        self.bytes_read += count * region.element_size()
        return region

    def close(self) -> None:
        self._files.clear()
