"""Folders: which safetensors files make up a checkpoint, and which tensor is in which."""

from __future__ import annotations

import json
import os.path
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from core.errors import UserError
from plugins.sources.headers import Stored, read_header

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
LOOKED_FOR = f"{INDEX}, {SINGLE}, or *.safetensors"
NEVER = {
    ".bin": "pickles, which are never loaded because they can run code",
    ".pt": "pickles, which are never loaded because they can run code",
    ".pth": "pickles, which are never loaded because they can run code",
    ".gguf": "GGUF, which needs a plugin that reads it",
}

Located = dict[str, tuple[Path, Stored]]  # tensor -> its file and its place there


def locate(path: Path) -> Located:
    """Every tensor of a checkpoint: a folder, or one safetensors file.

    A folder's index file decides for each tensor; without one all its safetensors files are read.
    Symbolic links are followed, as the hub's cache lays its snapshots out. Raises UserError.
    """
    if path.is_file():
        if path.suffix == ".gguf":
            raise UserError(f"{path} is a GGUF file. Give a folder with {LOOKED_FOR}.")
        return {name: (path, stored) for name, stored in read_header(path).items()}
    if not path.is_dir():
        raise UserError(f"There is no folder {path}.")
    if (path / INDEX).is_file():
        return _indexed(path)
    files = [path / SINGLE] if (path / SINGLE).is_file() else sorted(path.glob("*.safetensors"))
    if not files:
        raise UserError(_nothing(path))
    found: Located = {}
    for file in files:
        for name, stored in read_header(file).items():
            if name in found:
                raise UserError(
                    f"Tensor {name!r} is in {found[name][0].name} and in {file.name} of {path}. "
                    f"Remove the file that does not belong there, or add {INDEX}."
                )
            found[name] = file, stored
    return found


def _nothing(path: Path) -> str:
    kinds = {
        file.suffix: reason
        for file in sorted(path.iterdir())
        if (reason := NEVER.get(file.suffix)) is not None
    }
    there = "; ".join(f"*{suffix} is there ({reason})" for suffix, reason in kinds.items())
    return f"{path} holds no weights: looked for {LOOKED_FOR}." + (f" {there}." if there else "")


def _indexed(path: Path) -> Located:
    weight_map = _weight_map(path / INDEX)
    headers: dict[str, dict[str, Stored]] = {}
    mistakes = []
    for shard in dict.fromkeys(weight_map.values()):
        parts = PurePosixPath(shard).parts
        if not parts or ".." in parts or shard.startswith(("/", "\\")) or "\0" in shard:
            mistakes.append(f"{path / INDEX} names {shard!r}, which is outside the folder.")
        elif not os.path.isfile(path / shard):  # Path.is_file raises for a name too long
            mistakes.append(f"{path / INDEX} names {shard!r}, and there is no such file.")
        else:
            headers[shard] = read_header(path / shard)
    found: Located = {}
    missing = 0
    for name, shard in weight_map.items():
        if shard not in headers:
            continue
        if name in headers[shard]:
            found[name] = path / shard, headers[shard][name]
        else:
            missing += 1
            if missing == 1:
                mistakes.append(f"{path / INDEX} says that {name!r} is in {shard}, but it is not.")
    if missing > 1:
        mistakes[-1] += f" So are {missing - 1} more."
    holders: dict[str, list[str]] = {}
    for shard, tensors in headers.items():
        for name in tensors:
            holders.setdefault(name, []).append(shard)
    for name, shards in holders.items():
        if len(shards) > 1:
            mistakes.append(f"Tensor {name!r} of {path} is in both {' and '.join(shards)}.")
        elif name not in weight_map:
            mistakes.append(f"Tensor {name!r} is in {path / shards[0]}, but not in {INDEX}.")
    if mistakes:
        raise UserError("\n".join(mistakes))
    return found


def _weight_map(file: Path) -> Mapping[str, str]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise ValueError(f"{key!r} is there twice")
            found[key] = value
        return found

    try:
        content = json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError, OSError) as error:
        raise UserError(f"{file} cannot be read: {error}.") from error
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise UserError(f"{file} has no table 'weight_map' from tensors to files.")
    wrong = [name for name, shard in weight_map.items() if not isinstance(shard, str)]
    if wrong:
        raise UserError(f"{file}: the file of {wrong[0]!r} is {weight_map[wrong[0]]!r}, not text.")
    return weight_map
