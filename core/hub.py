"""Models of the Hugging Face hub: what describes one is fetched at once, its weights when read.

So a mistake in the settings is told before gigabytes are fetched, and a dry run or a run on random
weights fetches none of them.
"""

from __future__ import annotations

import logging
import os.path
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import UserError
from core.json_files import read_json

if TYPE_CHECKING:
    from core.parallel import Index

log = logging.getLogger("plait")

DESCRIPTIONS = ["*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt"]
WEIGHTS = "*.safetensors"  # never pickles


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model of the hub, at one commit."""

    name: str  # "Qwen/Qwen3-0.6B"
    folder: Path  # its snapshot in the local cache; called as the commit

    def complete(self) -> bool:
        """Whether all of its weights are in the cache."""
        from huggingface_hub import snapshot_download

        wanted = self._weights()
        if wanted == [WEIGHTS]:
            there = any(self.folder.glob(WEIGHTS))
        else:
            there = all(os.path.isfile(self.folder / name) for name in wanted)
        if not there:
            return False
        try:  # the hub's list of files, where the cache has it, may name more
            snapshot_download(
                self.name,
                revision=self.folder.name,
                allow_patterns=wanted,
                local_files_only=True,
            )
        except Exception:
            return False
        return True

    def fetch(self) -> None:
        """Fetch the weights that are not in the cache. UserError when the hub has none to give."""
        from huggingface_hub import snapshot_download

        if self.complete():
            return
        log.info("fetching the weights of %s", self.name)
        try:
            snapshot_download(self.name, revision=self.folder.name, allow_patterns=self._weights())
        except Exception as error:
            raise UserError(
                f"model.path: the hub did not give the weights of {self.name} ({_reason(error)}). "
                "What has come is kept: try again, or download them and give their folder."
            ) from error

    def headers(self) -> Index:
        """Every tensor's shape and type. The hub sends the headers of its files and no more."""
        from huggingface_hub import HfApi

        from core.parallel.index import BITS

        try:
            files = HfApi().get_safetensors_metadata(self.name, revision=self.folder.name)
        except Exception as error:
            raise UserError(
                f"model.path: the hub did not say what the weights of {self.name} are "
                f"({_reason(error)}). Download the model and give its folder."
            ) from error
        found: dict[str, tuple[tuple[int, ...], str]] = {}
        for file, metadata in files.files_metadata.items():
            for tensor, info in metadata.tensors.items():
                if tensor in found:
                    raise UserError(f"{self.name}: tensor {tensor!r} of {file} is in another, too.")
                if info.dtype not in BITS:
                    raise UserError(f"{self.name}: {tensor!r} has the unknown type {info.dtype!r}.")
                found[tensor] = tuple(info.shape), str(info.dtype)
        return found

    def _weights(self) -> list[str]:
        """The files of its index, or a pattern. What is wrong with an index, its reader says."""
        try:
            index = read_json(self.folder / "model.safetensors.index.json", optional=True)
        except UserError:
            index = {}
        files = index.get("weight_map")
        named = {str(file) for file in files.values()} if isinstance(files, dict) else set()
        return sorted(named) or [WEIGHTS]


@cache
def hub_model(name: str, revision: str | None, key: str) -> HubModel:
    """The model called `name`, for the setting `key`; what describes it is in its folder.

    What the cache has whole is used as it is, and no question asked. `revision` is a branch, a tag
    or a commit; None is the main branch. UserError when the hub does not know it.
    """
    from huggingface_hub import snapshot_download

    from core.text import has_tokenizer

    def snapshot(local_files_only: bool = False) -> HubModel:
        folder = snapshot_download(
            name,
            revision=revision,
            allow_patterns=DESCRIPTIONS,
            local_files_only=local_files_only,
        )
        return HubModel(name, Path(folder))

    try:
        cached = snapshot(local_files_only=True)
        if has_tokenizer(cached.folder) and (key != "model.path" or cached.complete()):
            return cached
    except Exception:  # it is not there, or in parts
        pass
    log.info("asking the hub for %s", name)
    try:
        return snapshot()
    except Exception as error:
        at = f" at revision {revision}" if revision else ""
        raise UserError(
            f"{key}: there is no folder {name}, and the hub did not give such a model{at} "
            f"({_reason(error)}). Check the name, and HF_TOKEN if not everybody may read it; or "
            "download it and give its folder."
        ) from error


def _reason(error: Exception) -> str:
    line = (str(error).strip().splitlines() or ["no reason given"])[0]
    return f"{type(error).__name__}: {line}"
