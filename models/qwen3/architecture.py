"""The Qwen3 family: what its config.json means, its modules, and how ranks divide them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from core.interfaces import Architecture
from models.qwen3.config import Qwen3Config
from models.qwen3.dialect import dialect
from models.qwen3.plan import axes, ignore, plan

if TYPE_CHECKING:
    from torch import nn


class Qwen3(Architecture):
    """Qwen3 dense models, 0.6B to 32B, and finetunes of them."""

    axes = axes
    plan = plan
    ignore = ignore
    dialect = dialect

    @classmethod
    def config(
        cls, raw: Mapping[str, Any], *, max_length: int | None = None, ignore: Sequence[str] = ()
    ) -> Qwen3Config:
        return Qwen3Config.from_json(raw, max_length=max_length, ignore=ignore)

    @classmethod
    def model(cls, config: Qwen3Config) -> nn.Module:
        from models.qwen3.model import Qwen3ForCausalLM

        return Qwen3ForCausalLM(config)
