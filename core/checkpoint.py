"""Finds a checkpoint and reads what describes it: config.json and generation_config.json."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.errors import UserError
from core.json_files import read_json

if TYPE_CHECKING:
    from core.config import ModelConfig

log = logging.getLogger("plait")

HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "merges.txt", "vocab.txt"]  # never pickles


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder with weights, and its JSON files as read."""

    path: Path
    config: dict[str, Any]
    generation: dict[str, Any] = field(default_factory=dict)  # sampling defaults; {} when unused

    @property
    def architecture(self) -> str:
        """The model class that the checkpoint was made with, such as "Qwen3ForCausalLM"."""
        names = self.config.get("architectures")
        if isinstance(names, list) and len(names) == 1 and isinstance(names[0], str):
            return names[0]
        raise UserError(
            f"{self.path / 'config.json'}: 'architectures' must hold one model class, "
            f"not {names!r}."
        )

    def eos_ids(self) -> set[int]:
        """Ends of text that config.json and generation_config.json name; each may be a list."""
        found: set[int] = set()
        for file, source in (
            ("config.json", self.config),
            ("generation_config.json", self.generation_file()),
        ):
            value = source.get("eos_token_id")
            ids = value if isinstance(value, list) else [] if value is None else [value]
            if not all(type(token) is int and token >= 0 for token in ids):
                raise UserError(
                    f"{self.path / file}: eos_token_id must be an id or a list of ids, "
                    f"not {value!r}."
                )
            found.update(ids)
        return found

    def generation_file(self) -> dict[str, Any]:
        """generation_config.json of the folder, also when its sampling defaults are not used."""
        return read_json(self.path / "generation_config.json", optional=True)


def open_checkpoint(model: ModelConfig) -> Checkpoint:
    """The checkpoint that the configuration names, with its overrides applied.

    UserError if there is no such folder, or its JSON cannot be used.
    """
    path = find(model.path)
    config_file = path / "config.json"
    if not config_file.is_file():
        raise UserError(
            f"model.path: {path} holds no config.json, so it is not a Hugging Face checkpoint. "
            f"It holds: {_listing(path)}."
        )
    config = read_json(config_file)
    for key, value in model.config.items():
        log.warning(
            "model.config: %s = %r replaces %r of the checkpoint", key, value, config.get(key)
        )
        config[key] = value
    return Checkpoint(path, config, _generation(path, model.generation_config))


def _generation(path: Path, choice: str) -> dict[str, Any]:
    if choice == "none":
        return {}
    if choice == "auto":
        return read_json(path / "generation_config.json", optional=True)
    file = Path(choice).expanduser()
    if file.is_dir():
        file = file / "generation_config.json"
    if not file.is_file():
        raise UserError(
            f"model.generation_config: there is no file {file}. Say auto, none, or a path."
        )
    return read_json(file)


def find(name: str, key: str = "model.path") -> Path:
    """The folder behind a setting: a local one, a plugin's, or a model of the hub."""
    path = Path(name).expanduser()
    try:
        there, single = path.is_dir(), path.is_file()
    except OSError as error:  # a name too long, or a folder above that may not be entered
        raise UserError(f"{key}: {name:.200} cannot be looked at: {error.strerror}.") from error
    if there:
        return path
    if single:
        kind = "a GGUF file" if path.suffix == ".gguf" else "a file"
        raise UserError(
            f"{key}: {name} is {kind}. Give a folder with config.json and *.safetensors; "
            "another format needs a plugin that opens it."
        )
    from core.plugins import offer

    known = offer("find_model", name=name)
    if known is not None:
        return Path(known)
    parts = name.split("/")
    if len(parts) != 2 or not all(parts) or name.startswith((".", "~", "/")):
        raise UserError(
            f"{key}: there is no folder {name}. Give the path of a checkpoint, "
            "or the name of a hub model such as Qwen/Qwen3-0.6B."
        )
    return _from_hub(name, key)


def _from_hub(name: str, key: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=HUB_FILES, local_files_only=True))
    except Exception:
        log.info("%s is not in the local hub cache; asking the hub", name)
    try:
        return Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{key}: there is no folder {name}, and the hub did not give such a model "
            f"({type(error).__name__}: {reason}). Check the name, or download it and give "
            "its folder."
        ) from error


def _listing(path: Path) -> str:
    names = sorted(entry.name for entry in path.iterdir())
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "") if names else "nothing"
