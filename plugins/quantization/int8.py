"""Weights as 8-bit whole numbers with a scale for each output; activations stay as they are.

A checkpoint in this format says so in its config.json,

    "quantization_config": {"quant_method": "int8", "modules_to_not_convert": ["lm_head"]}

and holds, for each linear layer but those named, a `weight` [out, in] of type I8 and a
`weight_scale` [out] of type F32; the weight that is meant is their product. `quantization: int8`
makes the same of plain numbers while they are read: in float32, a scale is the largest of its row
over 127 (absmax quantization, Dettmers et al. 2022, LLM.int8(), section 2.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from core.errors import UserError
from core.parallel import Format, Quantization
from core.parallel.formats import DENSE
from core.visible import visible

INT8 = Format("int8", {**DENSE.roles, "weight_scale": (("out", 1),)})
LARGEST = 127  # -128 would make the range lopsided
UNIT = 2.0**-10  # of the numbers in float16, where sums end at 65504; no bit is lost by it


class Int8Linear(nn.Linear):
    """A linear layer whose weight is the product of whole numbers and scales."""

    keep_dtype = ("weight_scale",)  # float32 whatever the run's type is
    weight_scale: nn.Parameter

    def forward(self, input: Tensor) -> Tensor:
        """[T, in] -> [T, out]."""
        numbers, scale = self.weight.to(input.dtype), self.weight_scale
        if input.dtype == torch.float16:
            numbers, scale = numbers.mul_(UNIT), scale / UNIT
        y = F.linear(input, numbers) * scale
        return (y if self.bias is None else y + self.bias).to(input.dtype)


class Int8(Quantization):
    interface = 1
    summary = "8-bit weights, a scale for each output"

    @dataclass
    class Options(Quantization.Options):
        modules_to_not_convert: list[str] = field(
            default_factory=lambda: ["lm_head"],
            metadata={"help": "linear layers that stay as they are: last names, or whole ones"},
        )

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        unknown = set(config) - {"quant_method", "modules_to_not_convert"}
        kept = config.get("modules_to_not_convert", self.Options().modules_to_not_convert)
        if unknown:
            names = ", ".join(visible(name, keep="") for name in sorted(unknown))
            raise UserError(f"quantization_config: {names} is not implemented for int8.")
        if not isinstance(kept, list) or not all(isinstance(name, str) for name in kept):
            raise UserError(
                "quantization_config: modules_to_not_convert must be a list of names, not "
                f"{kept!r}."
            )
        self.kept = frozenset(kept)

    @classmethod
    def matches(cls, config: Mapping[str, Any]) -> bool:
        return config.get("quant_method") == "int8"

    def format(self, source: str, module: Any) -> Format:
        kept = source in self.kept or source.rpartition(".")[2] in self.kept
        return DENSE if kept or not isinstance(module, nn.Linear) else INT8

    def prepare(self, module: Any, format: Format, parts: int) -> None:
        size = module.weight.shape
        numbers = torch.empty(size, dtype=torch.int8, device="meta")
        module.weight = nn.Parameter(numbers, requires_grad=False)
        module.weight_scale = nn.Parameter(torch.empty(size[0], device="meta"))
        module.__class__ = Int8Linear

    def encode(self, weight: Tensor, format: Format) -> dict[str, Tensor]:
        weight = weight.float()
        tiny = torch.finfo(torch.float32).tiny  # a row of zeros has some scale, too
        largest = torch.maximum(weight.amax(1), -weight.amin(1))
        scale = (largest / LARGEST).clamp(min=tiny)
        numbers = (weight / scale[:, None]).round_().to(torch.int8)
        return {"weight": numbers, "weight_scale": scale}

    def error(self, weight: Tensor, format: Format) -> Tensor:
        """Half a step of the row, and what float32 makes of it."""
        weight = weight.double()
        step = weight.abs().amax(1, keepdim=True) / LARGEST
        return (0.5 + 1e-4) * step.expand_as(weight) + torch.finfo(torch.float32).tiny
