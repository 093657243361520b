"""A plugin for checkpoints in one file: safetensors whose metadata holds what the folder had."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from core.errors import UserError
from core.hooks import hookimpl
from core.parallel import DictSource
from core.text import Tokenizer

SUFFIX = ".whole"


def pack(folder: Path, file: Path) -> Path:
    """Write the checkpoint in `folder` as one file."""
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    metadata = {
        "config": (folder / "config.json").read_text(),
        "tokenizer": (folder / "tokenizer.json").read_text(),
        "eos_token": settings["eos_token"],
        "chat_template": (folder / "chat_template.jinja").read_text(),
    }
    save_file(load_file(folder / "model.safetensors"), file, metadata)
    return file


def metadata(path: Path) -> dict[str, str]:
    with safe_open(path, "pt") as file:
        return file.metadata() or {}


class Whole(DictSource):
    """All tensors of the file, and its config."""

    def __init__(self, path: Path) -> None:
        super().__init__(load_file(path))
        self.path = path

    def config(self):
        found = metadata(self.path).get("config")
        return None if found is None else json.loads(found)


@hookimpl
def open_weights(path):
    if path.suffix != SUFFIX:
        return None
    if path.stat().st_size < 8:
        raise UserError(f"{path} is cut off.")
    return Whole(path)


@hookimpl
def open_tokenizer(path):
    if path.suffix != SUFFIX:
        return None
    found = metadata(path)
    return Tokenizer(
        tokenizers.Tokenizer.from_str(found["tokenizer"]),
        special_tokens={"eos_token": found["eos_token"]},
        chat_templates={"default": found["chat_template"]},
        source=str(path),
    )


@hookimpl
def find_model(name):
    file = Path(f"{name}{SUFFIX}")
    return file if file.is_file() else None
