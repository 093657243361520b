"""The built-in kernel sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.hooks import hookimpl

if TYPE_CHECKING:
    from core.registry import Registries


@hookimpl
def register(registries: Registries) -> None:
    registries.kernels.register(
        "torch",
        "plugins.kernels.torch:TorchKernels",
        summary="plain torch, on any device; the twin of every other set",
    )
    registries.kernels.register(
        "triton",
        "plugins.kernels.triton.kernels:TritonKernels",
        needs=("triton",),
        summary="fused Triton kernels for CUDA GPUs, and sampling on the device",
    )
