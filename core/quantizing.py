"""Which storage format a run's weights have: the checkpoint's own, or the one they are given."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from core.errors import UserError
from core.parallel import Quantization, formats_of
from core.registry import registries
from core.visible import visible

if TYPE_CHECKING:
    from core.checkpoint import Checkpoint
    from core.config import Config


def quantization_of(config: Config, checkpoint: Checkpoint) -> Quantization | None:
    """The format that the configuration chooses, or the checkpoint; None: plain numbers.

    UserError when the two contradict each other.
    """
    use = config.quantization.use
    if use == "auto":
        return formats_of(checkpoint.config)
    registry = registries.quantization
    chosen = registry.get(use)
    options = config.quantization.options
    stored = checkpoint.config.get("quantization_config")
    if stored:
        method = visible(str(stored.get("quant_method", "no quant_method")), keep="")
        if not chosen.matches(stored):
            raise UserError(
                f"quantization is {use}, and {checkpoint.path} is stored in another format already "
                f"(quantization_config: {method}). Leave quantization out."
            )
        if options != chosen.Options():
            raise UserError(
                f"quantization has options, and {checkpoint.path} says itself how it is stored "
                f"(quantization_config: {method}). Leave them out."
            )
        return chosen(stored)
    if not chosen.encodes():
        able = [name for name in registry.names() if not registry.entry(name).missing()
                and registry.get(name).encodes()]  # fmt: skip
        raise UserError(
            f"quantization is {use}, which reads checkpoints in that format and cannot make it of "
            f"plain numbers, as {checkpoint.path} has them. These can: {', '.join(able) or 'none'}."
        )
    return chosen(dataclasses.asdict(options))


def encoding(checkpoint: Checkpoint, formats: Quantization | None) -> bool:
    """Whether weights are put into the format while they are read."""
    return formats is not None and not checkpoint.config.get("quantization_config")
