"""The source `dummy`: values that depend on the seed and the tensor's name alone."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from core.errors import UserError
from core.parallel import Index, Source
from core.parallel.recipe import Box, chunks, extent_of, length, slices, whole
from core.parallel.sources import TORCH_TYPES

FLOATING = ("F16", "BF16", "F32", "F64")
BLOCK = 1 << 19  # values made at a time, so that threads do not quarrel over memory
PER_WORD = 4  # values that one 64-bit word of the generator gives


class DummySource(Source):
    """Stands in for a checkpoint, so that no file is needed to run or to measure a model.

    Element i of a tensor is the same however the tensor is cut, so any number of ranks holds the
    same model: a generator that can jump (PCG64) makes just the rows that are asked for. Weights
    are uniform with standard deviation `std`; vectors called weight (norms) lie around 1.
    """

    finds_files = False
    concurrent = True

    def __init__(self, expected: Index, seed: int = 0, std: float = 0.02) -> None:
        super().__init__()
        self._index = dict(expected)
        self.seed, self.std = seed, std
        odd = [name for name, (_, dtype) in expected.items() if dtype not in FLOATING]
        if odd:
            raise UserError(
                f"The source dummy makes floating point numbers up, and {odd[0]} is of type "
                f"{expected[odd[0]][1]}. Use a real checkpoint for quantized models."
            )

    @classmethod
    def open(cls, path: Path | None, expected: Index, *, seed: int = 0) -> DummySource:
        return cls(expected, seed)

    def index(self) -> Index:
        return self._index

    def read(self, name: str, box: Box) -> Tensor:
        shape, dtype = self._index[name]
        box = box or whole(shape)
        rows = box[0] if box else (0, 1)
        width = math.prod(shape[1:])
        values = self._values(name, rows[0] * width, rows[1] * width)
        block = torch.from_numpy(values).reshape(rows[1] - rows[0], *shape[1:])
        inner = (slice(None, None, rows[2] if len(rows) > 2 else 1), *slices(box[1:]))
        region = self._scaled(name, shape, block[inner], TORCH_TYPES[dtype])
        self.count(region)
        return region.reshape(extent_of(box))

    def read_into(self, name: str, box: Box, out: Tensor) -> None:
        if not box:
            out.copy_(self.read(name, box).reshape(out.shape))
            return
        at = 0
        for part in chunks(box, BLOCK):
            rows = length(part[0])
            out[at : at + rows].copy_(self.read(name, part))
            at += rows

    def _values(self, name: str, start: int, stop: int) -> np.ndarray:
        """Elements [start, stop) of a tensor, as 16-bit whole numbers."""
        key = hashlib.blake2b(f"{self.seed}:{name}".encode(), digest_size=16).digest()
        generator = np.random.PCG64(int.from_bytes(key, "little"))
        first = start // PER_WORD
        generator.advance(first)
        words = generator.random_raw(-(-stop // PER_WORD) - first)
        return words.view(np.int16)[start - first * PER_WORD : stop - first * PER_WORD]

    def _scaled(self, name: str, shape: tuple[int, ...], raw: Tensor, dtype: torch.dtype) -> Tensor:
        norm = len(shape) == 1 and name.endswith("weight")
        spread = 0.1 if norm else self.std
        # a uniform distribution over [-1, 1) has the standard deviation 1 / sqrt(3)
        values = raw.to(torch.float32).mul_(math.sqrt(3) * spread / 32768)
        return (values + 1 if norm else values).to(dtype)
