"""Experts: a stack of expert weights, of which each rank holds some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from core.parallel import Guard, Sharding
from plugins.sharding.linear import AllReduce


class Expert(Sharding):
    """The leading dim follows the expert axis; a rank's output is what its experts contribute."""

    default_axis = "experts"

    @property
    def dims(self) -> Mapping[str, str]:
        assert self.axis is not None
        return {"expert": self.axis}

    @property
    def guard(self) -> type[Guard] | None:
        return AllReduce

    def accepts(self, module: Any) -> str | None:
        assert isinstance(module, nn.Module)
        stacked = all(parameter.dim() > 1 for parameter in module.parameters(recurse=False))
        # the weight of one of these has two dims, too, and none of them is an expert's
        if stacked and not isinstance(module, nn.Linear | nn.Embedding):
            return None
        return "It cuts stacks of experts, whose parameters all have a leading expert dim."
