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


def choose(shape: AttentionShape, number: int | None = None) -> Choice:
    """The best generation for a shape, or just generation `number`. Imports what it considers."""
    capability = torch.cuda.get_device_capability()
    against = []
    for flash in preference(capability):
        if number is not None and flash.number != number:
            continue
        name = f"FlashAttention {flash.number}"
        if not installed(flash.marker):
            against.append(f"{name} ({flash.package}) is not installed")
            continue
        if reasons := flash.rejects(shape, capability):
            against += [f"{name}: {reason}" for reason in reasons]
            continue
        try:
            flash.load()
        except Exception as error:  # built for another torch, or an incomplete package
            against.append(f"{name} cannot be imported: {cause(error)}")
            continue
        return Choice(flash, tuple(against))
    return Choice(None, tuple(against))
