"""The Llama family: what its config.json means, its modules, and how ranks divide them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from core.interfaces import Architecture
from plait_llama.config import LlamaConfig
from plait_llama.plan import axes, ignore, plan

if TYPE_CHECKING:
    from torch import nn


class Llama(Architecture):
    """Llama models and whatever has their shape."""

    axes = axes
    plan = plan
    ignore = ignore

    @classmethod
    def config(
        cls, raw: Mapping[str, Any], *, max_length: int | None = None, ignore: Sequence[str] = ()
    ) -> LlamaConfig:
        return LlamaConfig.from_json(raw, max_length=max_length, ignore=ignore)

    @classmethod
    def model(cls, config: LlamaConfig) -> nn.Module:
        from plait_llama.model import LlamaForCausalLM

        return LlamaForCausalLM(config)
