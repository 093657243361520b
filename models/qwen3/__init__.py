"""Registers the Qwen3 family of dense language models."""

from __future__ import annotations

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
