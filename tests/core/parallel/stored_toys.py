"""One linear layer under any storage format, held as plain numbers that a test can take apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from core.parallel import DictSource, Format, ParallelPlan, Quantization, allocate, even, load
from core.parallel.formats import DENSE


@dataclass(frozen=True)
class Sizes:
    cut: int
    other: int


class Stored(Quantization):
    """Holds the roles of a format as plain numbers, so that a test can take them apart."""

    def __init__(self, kind: Format, dense: tuple[str, ...] = ()) -> None:
        super().__init__({})
        self.kind, self.dense = kind, dense

    def format(self, source: str, module: Any) -> Format:
        return DENSE if source in self.dense else self.kind

    def prepare(self, module: Any, format: Format, parts: int) -> None:
        sizes = {"out": module.out_features, "in": module.in_features, "part": parts}
        if "weight" not in format.roles:
            del module.weight
        for role, dims in format.roles.items():
            if role in ("weight", "bias"):
                continue
            shape = [-(-sizes[dim] // divisor) for dim, divisor in dims]
            setattr(module, role, nn.Parameter(torch.empty(shape, device="meta")))


def family(style: str, unit: int = 1, parts: tuple[str, ...] = ("w",)) -> SimpleNamespace:
    """One linear layer, called w unless it is packed of several parts."""

    def model(c: Sizes) -> nn.Module:
        rows, columns = (c.cut, c.other) if style == "colwise" else (c.other, c.cut)
        return nn.ModuleDict({"w": nn.Linear(columns, rows * len(parts), bias=False)})

    rule: Any = f"{style}:a" if parts == ("w",) else {part: f"{style}:a" for part in parts}
    return SimpleNamespace(model=model, axes={"a": even("cut", unit=unit)}, plan={"w": rule})


def shards(plan: ParallelPlan, tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    source = DictSource(tensors)
    plan.check(source.index())
    found = []
    for rank in range(plan.tensor):
        model = allocate(plan.local_model(rank), "cpu", torch.float64)
        params = dict(model.named_parameters())
        load(plan.recipe(rank), params, source)
        found.append({name: p.data for name, p in params.items()})
    return found


def expand(scale: Tensor, rows: int, columns: int, block: int) -> Tensor:
    return scale.repeat_interleave(block, 0)[:rows].repeat_interleave(block, 1)[:, :columns]
