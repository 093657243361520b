"""Registers the Qwen3 family of dense language models, and the checkpoints that ship with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from core.hooks import hookimpl

if TYPE_CHECKING:
    from core.registry import Registries


@hookimpl
def register(registries: Registries) -> None:
    registries.models.register(
        "Qwen3ForCausalLM",
        "models.qwen3.architecture:Qwen3",
        summary="Qwen3 dense models, 0.6B to 32B",
    )


@hookimpl
def find_model(name: str) -> Path | None:
    """`tiny`, a small trained model; `Qwen3-8B` and its like, shapes for `model.weights: dummy`."""
    if name in ("", ".", "..") or "/" in name or "\\" in name:
        return None
    here = Path(__file__).parent
    for folder in (here / name, here / "sizes" / name):
        if (folder / "config.json").is_file():
            return folder
    return None
