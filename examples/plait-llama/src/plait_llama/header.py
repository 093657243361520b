"""What a GGUF file says before its weights: settings, vocabulary, and where each tensor lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from core.errors import UserError

ARCHITECTURE = "llama"


@dataclass(frozen=True)
class Stored:
    """One tensor: `kind` is GGUF's name of its type, such as "Q4_K"."""

    name: str
    shape: tuple[int, ...]  # as torch has it: rows first
    kind: str
    start: int  # bytes from the beginning of the file
    block: int  # neighbouring entries of a row that are packed together
    block_bytes: int

    @property
    def row_bytes(self) -> int:
        return self.shape[-1] // self.block * self.block_bytes


@dataclass(frozen=True)
class Header:
    """A file's settings by their GGUF names, and its tensors by theirs."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Stored]

    def setting(self, key: str, default: Any = None) -> Any:
        """A setting of the architecture: `setting("block_count")` is llama.block_count."""
        return self.metadata.get(f"{ARCHITECTURE}.{key}", default)


def read_header(path: Path) -> Header:
    """Read a file of the architecture llama. UserError when it is broken, or something else."""
    try:
        state = path.stat()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error}.") from error
    return _read(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=1)  # configuration, tokenizer and weights are read one after the other
def _read(path: Path, changed: int, size: int) -> Header:
    try:
        import gguf
    except ImportError as error:
        raise UserError(f"{path}: GGUF files need the package gguf: pip install gguf") from error
    try:
        reader = _whole(gguf.GGUFReader)(path)
        metadata = {key: field.contents() for key, field in reader.fields.items()}
    except Exception as error:  # the library meets a broken file with whatever numpy says
        raise UserError(
            f"{path} cannot be read as GGUF: {error}. Is it complete? It has {size:,} bytes."
        ) from error
    _check(path, metadata, reader)
    tensors = {
        tensor.name: Stored(
            tensor.name,
            tuple(int(size) for size in reversed(tensor.shape)),
            tensor.tensor_type.name,
            int(tensor.data_offset),
            *gguf.GGML_QUANT_SIZES[tensor.tensor_type],
        )
        for tensor in reader.tensors
    }
    return Header(path, metadata, tensors)


def _whole(reader: type[Any]) -> type[Any]:
    """A reader that stops where the file ends.

    The library's own reads nothing there, again and again: an array that claims a billion entries
    becomes a billion empty ones in memory.
    """

    class Whole(reader):
        def _get(self, offset: int, dtype: Any, count: int = 1, *more: Any, **words: Any) -> Any:
            found = super()._get(offset, dtype, count, *more, **words)
            if len(found) < count:
                raise ValueError(f"it ends before what it should have at byte {offset:,}")
            return found

    return Whole


def _check(path: Path, metadata: Mapping[str, Any], reader: Any) -> None:
    """UserError for a file that this package does not read."""
    if reader.endianess != type(reader.endianess).LITTLE:
        raise UserError(f"{path} is written for big-endian machines, which plait-llama is not for.")
    found = metadata.get("general.architecture")
    if found != ARCHITECTURE:
        raise UserError(
            f"{path} holds a model of the architecture {found!r}, and plait-llama reads "
            f"{ARCHITECTURE!r}."
        )
    parts = metadata.get("split.count", 0)
    if parts > 1:
        raise UserError(
            f"{path} is one of {parts} parts: put them together with `gguf-split --merge` of "
            "llama.cpp."
        )
