"""Finds a checkpoint and reads what describes it: config.json, or whoever reads its weights."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.errors import UserError
from core.hub import HubModel, hub_model
from core.json_files import read_json

if TYPE_CHECKING:
    from core.config import ModelConfig
    from core.parallel import Source

log = logging.getLogger("plait")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder or a file with weights, and what describes them."""

    path: Path
    config: dict[str, Any]  # as in config.json
    generation: dict[str, Any] = field(default_factory=dict)  # sampling defaults; {} when unused
    hub: HubModel | None = None  # whose snapshot `path` is; its weights may not be there yet

    @property
    def name(self) -> str:
        """What people call it: its name on the hub, or that of its folder or file."""
        return self.hub.name if self.hub else self.path.resolve().name

    @property
    def config_file(self) -> Path:
        """Where `config` was read from: config.json, or what holds the weights as well."""
        file = self.path / "config.json"
        return file if file.is_file() else self.path

    @property
    def architecture(self) -> str:
        """The model class that the checkpoint was made with, such as "Qwen3ForCausalLM"."""
        names = self.config.get("architectures")
        if isinstance(names, list) and len(names) == 1 and isinstance(names[0], str):
            return names[0]
        raise UserError(
            f"{self.config_file}: 'architectures' must hold one model class, not {names!r}."
        )

    def eos_ids(self) -> set[int]:
        """Ends of text that config.json and generation_config.json name; each may be a list."""
        found: set[int] = set()
        for file, source in (
            (self.config_file, self.config),
            (self.path / "generation_config.json", self.generation_file()),
            ("model.generation_config", self.generation),
        ):
            value = source.get("eos_token_id")
            ids = value if isinstance(value, list) else [] if value is None else [value]
            if not all(type(token) is int and token >= 0 for token in ids):
                raise UserError(
                    f"{file}: eos_token_id must be an id or a list of ids, not {value!r}."
                )
            found.update(ids)
        return found

    def generation_file(self) -> dict[str, Any]:
        """generation_config.json of the folder, also when its sampling defaults are not used."""
        return read_json(self.path / "generation_config.json", optional=True)


def open_checkpoint(model: ModelConfig) -> Checkpoint:
    """The checkpoint that the configuration names, with its overrides applied.

    UserError if there is none, or what describes it cannot be used.
    """
    found = _found(model.path, "model.path", model.revision)
    path, hub = (found.folder, found) if isinstance(found, HubModel) else (found, None)
    config = _config(path)
    for key, value in model.config.items():
        log.warning(
            "model.config: %s = %r replaces %r of the checkpoint", key, value, config.get(key)
        )
        config[key] = value
    return Checkpoint(path, config, _generation(path, model.generation_config), hub)


def _config(path: Path) -> dict[str, Any]:
    """config.json of a folder; without one, what the plugin that reads the weights says of them."""
    if (path / "config.json").is_file():
        return read_json(path / "config.json")
    source = claimed(path)
    if source is not None:
        with source:
            found = source.config()
        if found is not None:
            return dict(found)
    if path.is_file():
        raise UserError(
            f"model.path: {path} is a file that no plugin reads. Give a folder with config.json "
            "and *.safetensors, or add a plugin for this format."
        )
    raise UserError(
        f"model.path: {path} holds no config.json, so it is not a Hugging Face checkpoint. "
        f"It holds: {_listing(path)}."
    )


def claimed(path: Path) -> Source | None:
    """The weights at `path`, if a plugin says that their format is its own."""
    from core.parallel import Source
    from core.plugins import offer

    found = offer("open_weights", path=path)
    assert found is None or isinstance(found, Source), found
    return found


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


def find(name: str, key: str = "model.path", revision: str | None = None) -> Path:
    """The folder or file behind a setting: a local one, a plugin's, or of a model of the hub.

    `revision` is a branch, a tag or a commit of the hub. UserError if there is no such model.
    """
    found = _found(name, key, revision)
    return found.folder if isinstance(found, HubModel) else found


def _found(name: str, key: str, revision: str | None) -> Path | HubModel:
    path = _on_disk(name, key)
    if path is None:
        return hub_model(name, revision, key)
    if revision is not None:
        raise UserError(
            f"model.revision is {revision!r}, and {name} is not of the hub: it has no revisions. "
            "Leave model.revision out."
        )
    return path


def _on_disk(name: str, key: str) -> Path | None:
    """None when the name is that of a model of the hub."""
    path = Path(name).expanduser()
    try:
        there = path.is_dir() or path.is_file()
    except OSError as error:  # a name too long, or a folder above that may not be entered
        raise UserError(f"{key}: {name:.200} cannot be looked at: {error.strerror}.") from error
    if there:
        return path
    from core.plugins import offer

    known = offer("find_model", name=name)
    if known is not None:
        return Path(known)
    parts = name.split("/")
    if len(parts) != 2 or not all(parts) or name.startswith((".", "~", "/")):
        raise UserError(
            f"{key}: there is no folder or file {name}. Give the path of a checkpoint, "
            "or the name of a hub model such as Qwen/Qwen3-0.6B."
        )
    return None


def _listing(path: Path) -> str:
    names = sorted(entry.name for entry in path.iterdir())
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "") if names else "nothing"
