"""Resolves `auto`: the device, and the components that suit it. The only place that does."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from core.config import COMPONENTS
from core.errors import UserError
from core.registry import registries

if TYPE_CHECKING:
    from core.config import Config

CANDIDATES: dict[str, dict[str, tuple[str, ...]]] = {
    "attention": {"cuda": ("triton", "flash", "sdpa"), "cpu": ("sdpa",)},
    "kernels": {"cuda": ("triton", "torch"), "cpu": ("torch",)},
    "runner": {"cuda": ("cuda_graph", "eager"), "cpu": ("eager",)},
}
"""Components for a kind of device, the best first. `core.fitting` asks whether they fit a model."""

LATER = ("quantization",)
"""Sections whose `auto` the checkpoint settles, when it is read."""

_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR")


def device(asked: str) -> tuple[str, str]:
    """-> the device to use, and why. Imports torch to find out."""
    if asked != "auto":
        return asked, ""
    import torch

    if torch.cuda.is_available():
        return "cuda", "auto: torch finds a CUDA device"
    return "cpu", "auto: torch finds no CUDA device"


def candidates(section: str, on: str) -> tuple[str, ...]:
    """What `auto` of a component's section considers on a device such as "cuda:1"."""
    if section == "executor":
        return ("torchrun",) if all(os.environ.get(name) for name in _TORCHRUN) else ("local",)
    return CANDIDATES.get(section, {}).get(on.partition(":")[0], ())


def chose(config: Config, section: str) -> bool:
    """Whether a section's component was chosen here."""
    return config.origins.get(f"{section}.use", "").startswith("auto: ")


def component(section: str, on: str) -> tuple[str, str]:
    """-> the first candidate that is registered and has what it needs, and why it is that one.

    UserError if there is none, or if `auto` means nothing for this section.
    """
    registry = registries.all()[COMPONENTS[section]]
    considered = candidates(section, on)
    if not considered:
        names = ", ".join(registry.names()) or "none"
        raise UserError(f"has no automatic choice. Choose a {registry.kind}: {names}.")
    passed = []
    for name in considered:
        if name not in registry.names():
            passed.append(f"{name} is not registered")
        elif missing := registry.entry(name).missing():
            passed.append(f"{name} needs {', '.join(missing)}")
        else:
            where = "for torchrun" if name == "torchrun" else f"on {on.partition(':')[0]}"
            return name, "; ".join([f"auto: {where}", *passed])
    raise UserError(f"found no {registry.kind} for {on}: {'; '.join(passed)}.")
