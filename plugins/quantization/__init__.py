"""Registers the built-in storage format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.hooks import hookimpl

if TYPE_CHECKING:
    from core.registry import Registries


@hookimpl
def register(registries: Registries) -> None:
    registries.quantization.register(
        "int8", "plugins.quantization.int8:Int8", summary="8-bit weights, a scale for each output"
    )
