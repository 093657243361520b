"""Which attention and which kernels fit a model on a device: asked before memory is taken."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from core.config import COMPONENTS, Component
from core.errors import UserError
from core.layers import Attention
from core.registry import registries
from core.settings import auto
from core.setup import device_of, dtype_of

if TYPE_CHECKING:
    from torch import nn

    from core.config import Config
    from core.interfaces import AttentionBackend
    from core.setup import Setup

log = logging.getLogger("plait")

SECTIONS = ("kernels", "attention")


@dataclass
class Place:
    """What a layer must know of its rank to say which attention it needs."""

    page_size: int
    dtype: torch.dtype
    cache_dtype: torch.dtype
    device: torch.device


def place(
    config: Config, setup: Setup, backend: type[AttentionBackend], device: torch.device
) -> Place:
    """Sizes and types of a rank's cache; `auto` is what suits the backend and the weights."""
    asked, dtype = config.cache.page_size, dtype_of(config, setup)
    best = backend.best_page_size or next(iter(backend.page_sizes), 256)
    cached = config.cache.dtype
    return Place(
        best if asked == "auto" else asked,
        dtype,
        dtype if cached == "auto" else getattr(torch, cached),
        device,
    )


def against(
    section: str, cls: Any, config: Config, setup: Setup, model: nn.Module, device: torch.device
) -> list[str]:
    """Reasons not to use a component for a rank's model."""
    if section == "kernels":
        return list(cls.rejects(dtype_of(config, setup), device.type))
    where = place(config, setup, cls, device)
    shapes = {m.shape(where) for m in model.modules() if isinstance(m, Attention)}
    return sorted({reason for shape in shapes for reason in cls.rejects(shape)})


def check(config: Config, setup: Setup, model: nn.Module, device: torch.device) -> None:
    """UserError with all that is said against the chosen components, and with what would fit."""
    wrong = []
    for section in SECTIONS:
        use = getattr(config, section).use
        cls = registries.all()[COMPONENTS[section]].get(use)
        reasons = against(section, cls, config, setup, model, device)
        wrong += [f"{section}: {use}: {reason}" for reason in reasons]
        if not reasons:
            continue
        fit = [
            name
            for name, other in _candidates(section, config)
            if not against(section, other, config, setup, model, device)
        ]
        if fit:
            wrong.append(f"{section}: {' and '.join(fit)} would fit; {section}=auto takes {fit[0]}")
    if wrong:
        raise UserError("\n".join(wrong))


def settle(config: Config, setup: Setup) -> None:
    """Where `auto` chose a component that does not fit the model, choose the next that does.

    For all ranks alike: the first and the last have the most and the fewest heads. UserError as
    from `check` when something does not fit in the end.
    """
    device = device_of(config, 0)
    models = [setup.plan.skeleton(rank) for rank in {0, config.parallel.tensor - 1}]
    for section in filter(lambda section: auto.chose(config, section), SECTIONS):
        passed: list[str] = []
        for name, cls in _candidates(section, config):
            reasons = {r for m in models for r in against(section, cls, config, setup, m, device)}
            if not reasons:
                _take(config, section, name, cls, passed)
                break
            passed += [f"{name}: {reason}" for reason in sorted(reasons)]
    for model in models:
        check(config, setup, model, device)


def _take(config: Config, section: str, name: str, cls: Any, passed: list[str]) -> None:
    before: Component = getattr(config, section)
    if name == before.use:
        return
    known = registries.all()[COMPONENTS[section]].get(before.use)
    if before.options != known.Options():
        return  # they were given for that one: the user shall hear why it cannot be used
    setattr(config, section, Component(name, cls.Options()))
    config.origins[f"{section}.use"] += f"; {'; '.join(passed)}"
    log.info("%s: %s, because of %s", section, name, "; ".join(passed))


def _candidates(section: str, config: Config) -> Iterator[tuple[str, Any]]:
    """What `auto` may choose on this machine, the best first."""
    registry = registries.all()[COMPONENTS[section]]
    for name in auto.candidates(section, config.model.device):
        if name in registry.names() and not registry.entry(name).missing():
            yield name, registry.get(name)
