"""Registers the built-in weight sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.hooks import hookimpl

if TYPE_CHECKING:
    from core.registry import Registries


@hookimpl
def register(registries: Registries) -> None:
    registries.sources.register(
        "pread",
        "plugins.sources.pread:PreadSource",
        summary="safetensors files, read by several threads; the way to a GPU",
    )
    registries.sources.register(
        "mmap",
        "plugins.sources.mmap:MmapSource",
        needs=("safetensors",),
        summary="safetensors files, mapped into memory; a rank touches its own bytes",
    )
    registries.sources.register(
        "dummy",
        "plugins.sources.dummy:DummySource",
        summary="random values that depend on the seed and the tensor's name alone; no files",
    )
