"""Quantization formats with one fault each."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from core.parallel import Format
from core.parallel.formats import DENSE
from core.registry import quantization
from plugins.quantization.int8 import INT8, Int8, Int8Linear


class Changed(Int8):
    """int8 with layers of another class."""

    layer = Int8Linear

    def prepare(self, module, format, parts):
        super().prepare(module, format, parts)
        module.__class__ = self.layer


@quantization.register("rounded-down")
class RoundedDown(Int8):
    def encode(self, weight, format):
        found = super().encode(weight, format)
        numbers = weight.float() / found["weight_scale"][:, None]
        return found | {"weight": numbers.floor().clamp(min=-127).to(torch.int8)}


@quantization.register("one-scale-for-all-rows")
class OneScaleForAllRows(Int8):
    def encode(self, weight, format):
        scale = weight.float().abs().max() / 127
        numbers = (weight.float() / scale).round().to(torch.int8)
        return {"weight": numbers, "weight_scale": scale.repeat(len(weight))}


@quantization.register("promises-nothing")
class PromisesNothing(Int8):
    def error(self, weight, format):
        return torch.full_like(weight.double(), math.inf)


@quantization.register("bias-scaled-too")
class BiasScaledToo(Changed):
    class layer(Int8Linear):
        def forward(self, input):
            y = F.linear(input, self.weight.to(input.dtype))
            y = y if self.bias is None else y + self.bias
            return (y * self.weight_scale).to(input.dtype)


@quantization.register("overflows-in-float16")
class OverflowsInFloat16(Changed):
    class layer(Int8Linear):
        def forward(self, input):
            y = F.linear(input * 64, self.weight.to(input.dtype)) / 64 * self.weight_scale
            return (y if self.bias is None else y + self.bias).to(input.dtype)


@quantization.register("scales-of-the-first-part")
class ScalesOfTheFirstPart(Int8):
    """One scale for all parts of a packed layer, as if they were stored together."""

    FORMAT = Format("first", {**DENSE.roles, "weight_scale": (("in", 10**6),)})

    def format(self, source, module):
        return DENSE if super().format(source, module) == DENSE else self.FORMAT

    def prepare(self, module, format, parts):
        super().prepare(module, format, parts)
        module.weight_scale = nn.Parameter(torch.empty(1, device="meta"))

    def encode(self, weight, format):
        scale = (weight.float().abs().max() / 127).reshape(1)
        numbers = (weight.float() / scale).round().clamp(-127, 127).to(torch.int8)
        return {"weight": numbers, "weight_scale": scale}

    def error(self, weight, format):
        return torch.full_like(weight.double(), float(weight.abs().max()) / 250)


@quantization.register("scales-by-column")
class ScalesByColumn(Int8):
    """Its plan cuts the scales with the inputs; they belong to the outputs."""

    def format(self, source, module):
        cut = Format("int8-by-column", {**INT8.roles, "weight_scale": (("in", 1),)})
        return cut if super().format(source, module) == INT8 else DENSE


@quantization.register("rounded-again-on-each-rank")
class RoundedAgainOnEachRank(Int8):
    def finalize(self, module, format):
        whole = module.weight * module.weight_scale[:, None]
        scale = whole.abs().amax(1).clamp(min=1e-30) / 7 if whole.numel() else module.weight_scale
        with torch.no_grad():
            module.weight.copy_((whole / scale[:, None]).round())
            module.weight_scale.copy_(scale)

    def error(self, weight, format):
        return super().error(weight, format) * 20


@quantization.register("depends-on-its-neighbours")
class DependsOnItsNeighbours(Int8):
    def encode(self, weight, format):
        found = super().encode(weight, format)
        scale = found["weight_scale"] * (1 + 1e-3 * weight.float().mean().sign())
        numbers = (weight.float() / scale[:, None]).round().clamp(-127, 127).to(torch.int8)
        return {"weight": numbers, "weight_scale": scale}

    def error(self, weight, format):
        return super().error(weight, format) * 2


@quantization.register("keeps-a-plain-copy")
class KeepsAPlainCopy(Changed):
    class layer(Int8Linear):
        def forward(self, input):
            if not hasattr(self, "copy") or self.copy.dtype != input.dtype:
                self.copy = (self.weight * self.weight_scale[:, None]).to(input.dtype)
            y = F.linear(input, self.copy)
            return (y if self.bias is None else y + self.bias).to(input.dtype)


@quantization.register("takes-memory-at-once")
class TakesMemoryAtOnce(Int8):
    def prepare(self, module, format, parts):
        super().prepare(module, format, parts)
        module.weight_scale = nn.Parameter(torch.ones(module.weight.shape[0]))


@quantization.register("claims-every-checkpoint")
class ClaimsEveryCheckpoint(Int8):
    @classmethod
    def matches(cls, config):
        return True


@quantization.register("ignores-what-it-does-not-know")
class IgnoresWhatItDoesNotKnow(Int8):
    def __init__(self, config):
        super().__init__({"modules_to_not_convert": config["modules_to_not_convert"]})


@quantization.register("converts-norms-in-name")
class ConvertsNormsInName(Int8):
    def format(self, source, module):
        return INT8 if "norm" in source else super().format(source, module)


@quantization.register("bias-in-short-steps-alone")
class BiasInShortStepsAlone(Changed):
    class layer(Int8Linear):
        def forward(self, input):
            y = super().forward(input)
            return y if len(input) <= 64 or self.bias is None else y - self.bias


@quantization.register("rounds-long-steps")
class RoundsLongSteps(Changed):
    """In bfloat16 a long step multiplies two numbers of 8 bits."""

    class layer(Int8Linear):
        def forward(self, input):
            if len(input) > 100 and input.dtype == torch.bfloat16:
                scale = input.float().abs().amax(1, keepdim=True).clamp(min=1e-9) / 127
                input = ((input / scale).round() * scale).to(input.dtype)
            return super().forward(input)
