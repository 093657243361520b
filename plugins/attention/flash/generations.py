"""Which generation of FlashAttention serves a shape on this device, and why."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from core.importing import cause, installed
from core.types import AttentionShape
from plugins.attention.flash.adapters import Capability, Flash, Flash2, Flash3, Flash4

GENERATIONS: tuple[type[Flash], ...] = (Flash2, Flash3, Flash4)


def preference(capability: Capability) -> tuple[type[Flash], ...]:
    """The generations for a device, the best first.

    Hopper: 3 is written for it; 2 runs at about two thirds of that; 4 runs, but does not split the
    context of a request over multiprocessors, so it decodes small batches slowly. Blackwell: 4 is
    written for it, and 3 does not run. Before Hopper there is only 2.
    """
    if capability[0] >= 10:
        return Flash4, Flash2, Flash3
    return Flash3, Flash2, Flash4


@dataclass(frozen=True)
class Choice:
    """The generation that is used, if any can be, and what is said against the others."""

    best: type[Flash] | None
    against: tuple[str, ...]

    def __str__(self) -> str:
        if self.best is None:
            return "; ".join(self.against)
        text = f"FlashAttention {self.best.number} ({self.best.package})"
        return f"{text}; {'; '.join(self.against)}" if self.against else text


def unfit(shape: AttentionShape) -> list[str]:
    """What no generation can do for a shape."""
    reasons = []
    if shape.dtype not in (torch.float16, torch.bfloat16):
        reasons.append(f"{shape.dtype} is neither float16 nor bfloat16")
    if shape.cache_dtype not in (None, shape.dtype):
        reasons.append(f"a cache of {shape.cache_dtype} beside {shape.dtype} is not implemented")
    if shape.head_dim % 8 or not 8 <= shape.head_dim <= 256:
        reasons.append(f"head_dim {shape.head_dim} is no multiple of 8 up to 256")
    if shape.kv_heads < 1 or shape.heads % shape.kv_heads:
        reasons.append(
            f"{shape.heads} query heads cannot share {shape.kv_heads} key/value heads evenly"
        )
    if shape.window is not None and shape.window < 1:
        reasons.append(f"a window of {shape.window} tokens sees nothing")
    if shape.device != "cuda":
        reasons.append(f"it runs on CUDA devices, not on {shape.device!r}")
    return reasons


def choose(shape: AttentionShape, number: int | None = None, decodes: bool = True) -> Choice:
    """The best generation for a shape, or just generation `number`. Imports what it considers.

    `decodes`: it must read the cache page by page, as decoding wants, not only prompts.
    """
    if reasons := unfit(shape):
        return Choice(None, tuple(reasons))
    capability = torch.cuda.get_device_capability()
    against = []
    for flash in preference(capability):
        if number is not None and flash.number != number:
            continue
        name = f"FlashAttention {flash.number}"
        if not installed(flash.marker):
            against.append(f"{name} ({flash.package}) is not installed")
            continue
        reasons = flash.rejects(shape, capability)
        if decodes:
            reasons += flash.rejects_pages(shape, capability)
        if reasons:
            against += [f"{name}: {reason}" for reason in reasons]
            continue
        try:
            flash.load()
        except Exception as error:  # built for another torch, or an incomplete package
            against.append(f"{name} cannot be imported: {cause(error)}")
            continue
        return Choice(flash, tuple(against))
    return Choice(None, tuple(against))
