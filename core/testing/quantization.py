"""One linear layer in a storage format: made of plain numbers, cut for ranks, and looked into."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from core.layers import Linear
from core.parallel import (
    Communicator,
    DictSource,
    EncodedSource,
    Format,
    ParallelPlan,
    Quantization,
    Source,
    ThreadGroup,
    allocate,
    even,
    guard,
    load,
)
from core.testing.sharding import columns

STYLES = ("colwise", "rowwise", "packed")
PACKED = ("q_proj", "k_proj", "v_proj")
MODULE = {"colwise": "up_proj", "rowwise": "o_proj", "packed": "qkv_proj"}


@dataclass(frozen=True)
class Widths:
    """Sizes of a layer; the second and third part of a packed one have `narrow` outputs each."""

    outs: int
    ins: int
    narrow: int


@dataclass
class QuantizedLayer:
    """A layer whose plain weights are known, in the format of a quantization.

    Rows differ in size by orders of magnitude, and so do the parts of a packed layer; one row of
    each is zero.
    """

    quantization: Quantization
    style: str  # of STYLES
    widths: Widths
    bias: bool = True
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    names: tuple[str, ...] = ()  # of the checkpoint modules, where others than usual are meant
    plain: dict[str, Tensor] = field(default_factory=dict)  # the checkpoint; made, if not given

    def __post_init__(self) -> None:
        usual = PACKED if self.style == "packed" else (MODULE[self.style],)
        self.names = self.names or usual
        made = torch.Generator().manual_seed(0)
        for number, (name, size) in enumerate(zip(self.names, self.sizes, strict=True)):
            if f"{name}.weight" not in self.plain:
                weight = torch.randn(size, self.widths.ins, generator=made)
                weight *= 10 ** (1.5 * torch.rand(size, 1, generator=made) - number)
                weight[size // 2] = 0
                self.plain[f"{name}.weight"] = weight
            if self.bias:
                self.plain[f"{name}.bias"] = torch.randn(size, generator=made)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The outputs of each part."""
        c = self.widths
        return (c.outs, c.narrow, c.narrow) if self.style == "packed" else (c.outs,)

    @property
    def outs(self) -> tuple[str | None, ...]:
        """The axis of each part's outputs."""
        return {"colwise": ("a",), "rowwise": (None,), "packed": ("a", "b", "b")}[self.style]

    @property
    def module(self) -> str:
        """The name of the module; of a part that stands alone, its own."""
        return MODULE["packed"] if self.style == "packed" else self.names[0]

    def format(self, name: str) -> Format:
        """How a part is stored, by its name."""
        return self.quantization.format(name, Linear(1, 1))

    def plan(self, ranks: int = 1) -> ParallelPlan:
        """UserError if the format refuses the layer, or cannot be cut for so many."""
        packed = self.style == "packed"
        parts = zip(self.names, self.outs, strict=True)

        def model(c: Widths) -> nn.Module:
            outs = c.outs + 2 * c.narrow * packed
            body: nn.Module = Linear(c.ins, outs, bias=self.bias)
            for key in reversed(self.module.split(".")):
                body = nn.ModuleDict({key: body})
            return body

        rule: Any = {name: f"colwise:{axis}" for name, axis in parts}
        axes = {"a": even("ins" if self.style == "rowwise" else "outs"), "b": even("narrow")}
        family = SimpleNamespace(
            model=model,
            axes=axes if packed else {"a": axes["a"]},
            plan={self.module: rule if packed else f"{self.style}:a"},
        )
        return ParallelPlan.build(
            family, self.widths, ranks, formats=self.quantization, replicate_limit=1.0
        )

    def stored(self) -> dict[str, Tensor]:
        """The checkpoint as somebody writes it who encodes whole weights."""
        found: dict[str, Tensor] = {}
        for name in self.names:
            encoded = self.quantization.encode(self.plain[f"{name}.weight"], self.format(name))
            found |= {f"{name}.{role}": x for role, x in encoded.items()}
            if self.bias:
                found[f"{name}.bias"] = self.plain[f"{name}.bias"]
        return found

    def run(
        self, ranks: int, action: Callable[[nn.Module, int], Any], *, source: Source | None = None
    ) -> tuple[list[Any], list[dict[str, Tensor]], ParallelPlan]:
        """What `action` makes of each rank's module, what was loaded into each, and the plan.

        Ranks are threads. Weights come from `source`, or are encoded while they are read.
        """
        plan = self.plan(ranks)

        def one(comm: Communicator) -> tuple[Any, dict[str, Tensor]]:
            read = source or EncodedSource(DictSource(self.plain), plan)
            model = allocate(plan.local_model(comm.rank), self.device, self.dtype)
            plan.check(read.index(), read, comm.rank)
            load(plan.recipe(comm.rank, read.index()), dict(model.named_parameters()), read)
            loaded = {name: x.cpu().clone() for name, x in model.state_dict().items()}
            plan.finalize(model)
            guard(model, plan, comm.rank, comm)
            model.eval().requires_grad_(False)
            with torch.inference_mode():
                return action(model.get_submodule(self.module), comm.rank), loaded

        results, states = zip(*ThreadGroup(ranks).run(one), strict=True)
        return list(results), list(states), plan

    def weight(self) -> Tensor:
        """The weight [out, in] that one rank computes with, as its outputs for unit vectors."""
        alone = QuantizedLayer(
            self.quantization, self.style, self.widths, False, self.device, torch.float32,
            self.names, {name: x for name, x in self.plain.items() if name.endswith("weight")},
        )  # fmt: skip
        units = torch.eye(self.widths.ins, device=self.device)
        (found,), _, _ = alone.run(1, lambda module, _: module(units))
        return torch.as_tensor(found).cpu().double().T

    def places(self, plan: ParallelPlan, rank: int) -> Tensor:
        """Which outputs of the whole layer a rank computes, in its order."""
        found, base = [], 0
        for axis, size in zip(self.outs, self.sizes, strict=True):
            own = torch.arange(size) if axis is None else columns(plan.cuts[axis], rank)
            found.append(base + own)
            base += size
        return torch.cat(found)

    def whole(self, role: str) -> Tensor:
        """The parts of a role of the plain checkpoint, end to end, in float64."""
        return torch.cat([self.plain[f"{name}.{role}"].double() for name in self.names])


def held(module: nn.Module) -> int:
    """Bytes of all tensors that a module holds on to, parameters or not, each memory once."""
    found: dict[int, int] = {}

    def look(value: object) -> None:
        if isinstance(value, Tensor):
            memory = value.untyped_storage()
            found[memory.data_ptr()] = memory.nbytes()
        elif isinstance(value, Mapping):
            for inner in value.values():
                look(inner)
        elif isinstance(value, list | tuple | set):
            for inner in value:
                look(inner)

    for inner in module.modules():
        look({name: x for name, x in vars(inner).items() if name != "_modules"})
    return sum(found.values())
