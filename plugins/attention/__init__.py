"""The built-in attention backends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.hooks import hookimpl

if TYPE_CHECKING:
    from core.registry import Registries


@hookimpl
def register(registries: Registries) -> None:
    registries.attention.register(
        "sdpa",
        "plugins.attention.sdpa:Sdpa",
        summary="torch's scaled_dot_product_attention, on any device",
    )
    registries.attention.register(
        "triton",
        "plugins.attention.triton.backend:TritonAttention",
        needs=("triton",),
        summary="paged attention in Triton, for GPUs, with no further package",
    )
    registries.attention.register(
        "flash",
        "plugins.attention.flash.backend:FlashAttention",
        needs=("flash_attn_interface or flash_attn_2_cuda or flash_attn.cute",),
        summary="FlashAttention 3, 2 or 4, for GPUs",
    )
