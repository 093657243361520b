"""Safetensors headers, read and checked before any library is given the file."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.errors import UserError
from core.parallel.index import BITS

LIMIT = 100_000_000  # bytes of a header; the reference implementation has the same limit
DIMS = 64  # of a tensor, as many as torch allows
FIELDS = {"dtype", "shape", "data_offsets"}


@dataclass(frozen=True)
class Stored:
    """One tensor of a file: `start` and `stop` are bytes behind the header."""

    shape: tuple[int, ...]
    dtype: str
    start: int
    stop: int


class _Broken(Exception):
    """A clause about what is wrong with a file."""


def read_header(path: Path) -> dict[str, Stored]:
    """Every tensor of a safetensors file. Raises UserError naming the file and the tensor.

    The data must be exactly the tensors: in range, of the size that shape and type say, without
    holes or overlaps.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            raw = _header_bytes(file.read(8), size)
            text = file.read(raw)
            if len(text) < raw:
                raise _Broken("it is cut off inside its header")
        return _checked(_parsed(text), size - 8 - raw)
    except RecursionError:
        raise UserError(f"{path}: its header is nested too deeply to be one.") from None
    except _Broken as error:
        raise UserError(f"{path}: {error}. Download or write the file again.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error}.") from error


def _header_bytes(prefix: bytes, size: int) -> int:
    if len(prefix) < 8:
        raise _Broken(
            "it is empty" if not prefix else f"it is cut off: it has {size} bytes, no header"
        )
    length = int.from_bytes(prefix, "little")
    if prefix[:4] == b"GGUF":
        raise _Broken("it is a GGUF file, not safetensors")
    if length > LIMIT:
        raise _Broken(f"it says that its header has {length} bytes, so it is not safetensors")
    if length > size - 8:
        raise _Broken(f"it is cut off: its header has {length} bytes, and {size - 8} are there")
    return length


def _parsed(text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise _Broken(f"its header has {key!r} twice")
            found[key] = value
        return found

    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except ValueError as error:
        raise _Broken(f"its header is not JSON ({error})") from None
    if not isinstance(header, dict) or not text.startswith(b"{"):
        raise _Broken("its header is not a JSON object")
    return header


def _checked(header: dict[str, Any], data: int) -> dict[str, Stored]:
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _Broken("its __metadata__ is not a table of text")
    tensors = {name: _entry(name, entry, data) for name, entry in header.items()}
    end, before = 0, ""
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
        if tensor.start < end:
            raise _Broken(f"tensors {before!r} and {name!r} overlap")
        if tensor.start > end:
            raise _Broken(f"bytes {end} to {tensor.start} before tensor {name!r} belong to none")
        end, before = tensor.stop, name
    if end != data:
        raise _Broken(f"{data - end} bytes behind the last tensor belong to none")
    return tensors


def _entry(name: str, entry: Any, data: int) -> Stored:
    where = f"tensor {name!r}"
    if not isinstance(entry, dict) or set(entry) != FIELDS:
        raise _Broken(f"{where} does not have just dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise _Broken(f"{where} has the unknown type {dtype!r}")
    if not _whole_numbers(shape) or len(shape) > DIMS:
        raise _Broken(f"{where} has the impossible shape {str(shape)[:80]}")
    if not _whole_numbers(offsets) or len(offsets) != 2:
        raise _Broken(f"{where} has the impossible offsets {str(offsets)[:80]}")
    start, stop = offsets
    if not start <= stop <= data:
        raise _Broken(f"{where} lies at bytes {start} to {stop}, and the file holds {data}")
    needed = math.prod(shape) * BITS[dtype] // 8
    if stop - start != needed:
        raise _Broken(
            f"{where} takes {stop - start} bytes, and {dtype} {tuple(shape)} takes {needed}"
        )
    return Stored(tuple(shape), dtype, start, stop)


def _whole_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**63 for n in value)
