"""Sources: where a checkpoint's bytes come from. The interface, and a source of tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

import torch
from torch import Tensor

from core.errors import UserError
from core.parallel.index import Index
from core.parallel.recipe import Box, slices

TORCH_TYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "U16": torch.uint16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
}


def dtype_name(dtype: torch.dtype) -> str:
    """A torch type as safetensors writes it: BF16, F32, ..."""
    for name, known in TORCH_TYPES.items():
        if known == dtype:
            return name
    raise UserError(f"{dtype} is not a type that checkpoints hold.")


class Source(ABC):
    """Moves regions of checkpoint tensors to the host. Register subclasses in `sources`.

    Errors: a UserError says which file is missing or damaged. Whatever is raised ends the start.
    """

    interface: ClassVar[int] = 1  # the version of this contract that a component was written for
    finds_files: ClassVar[bool] = True  # False: it makes values up, and needs no checkpoint
    has_values: ClassVar[bool] = True  # False: it knows shapes and types alone
    concurrent: ClassVar[bool] = False  # several threads may call `read_into` at once

    def __init__(self) -> None:
        self.bytes_read = 0  # of the regions that were asked for
        self._counting = Lock()

    def count(self, region: Tensor) -> None:
        """Add a region to `bytes_read`."""
        with self._counting:
            self.bytes_read += region.numel() * region.element_size()

    @classmethod
    def open(cls, path: Path | None, expected: Index, *, seed: int = 0) -> Source:
        """A source for the checkpoint at `path`.

        `expected` is the index of a checkpoint that fits the plan, for sources that make values
        up, from `seed`. Raises UserError when there is nothing that can be read.
        """
        raise NotImplementedError

    def config(self) -> Mapping[str, Any] | None:
        """What config.json would say, from a format that keeps it with the weights; else None.

        Asked of a source that the hook `open_weights` gave, where there is no config.json.
        """
        return None

    @abstractmethod
    def index(self) -> Index:
        """Every tensor's shape and type, from headers alone."""

    @abstractmethod
    def read(self, name: str, box: Box) -> Tensor:
        """A region of the tensor called `name`, on the host; box () is the whole of one element.

        The caller does not write to the result and does not keep it beyond the next call.
        """

    def read_into(self, name: str, box: Box, out: Tensor) -> None:
        """Write the region `box` of the tensor `name` to `out`, on the host, of that shape and the
        tensor's type."""
        out.copy_(self.read(name, box).reshape(out.shape))

    def close(self) -> None:
        """Give files and memory back."""
        return None

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class DictSource(Source):
    """Tensors that are in memory already."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.tensors = dict(tensors)

    def index(self) -> Index:
        return {name: (tuple(t.shape), dtype_name(t.dtype)) for name, t in self.tensors.items()}

    def read(self, name: str, box: Box) -> Tensor:
        region = self.tensors[name][slices(box)]
        self.count(region)
        return region


class Headers(Source):
    """What tensors there are, without their values: enough for a plan, and for no rank."""

    has_values = False

    def __init__(self, index: Index) -> None:
        super().__init__()
        self._index = index

    def index(self) -> Index:
        return self._index

    def read(self, name: str, box: Box) -> Tensor:
        raise UserError(f"Only the header of {name} was fetched, so its values cannot be read.")
