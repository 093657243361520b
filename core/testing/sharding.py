"""One layer under one strategy, cut for some ranks and put together again by its layout."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from core.parallel import (
    Communicator,
    ParallelPlan,
    Partition,
    Sharding,
    ThreadGroup,
    even,
    experts,
    gqa,
    unshard,
    vocab,
)
from core.parallel.groups import rows_of
from core.parallel.verify import build_rank, random_checkpoint

STEPS = (7, 1, 4, 9)  # tokens of the steps that one module serves, one after the other
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Sizes:
    """A config whose numbers nothing divides."""

    hidden: int = 5
    size: int = 13
    heads: int = 6
    kv_heads: int = 3
    head_dim: int = 2
    words: int = 11
    experts: int = 5

    def width(self, axis: str | None) -> int:
        """Elements on an axis; of no axis, the size that is never cut."""
        widths = {
            None: self.hidden,
            "q": self.heads * self.head_dim,
            "kv": self.kv_heads * self.head_dim,
            "vocab": self.words,
            "experts": self.experts,
        }
        return widths.get(axis, self.size)


class ExpertStack(nn.Module):
    """The sum of what its experts make of x: [T, hidden] -> [T, hidden]."""

    def __init__(self, count: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, size, size))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("eoi,ti->to", self.weight, x)


@dataclass(frozen=True)
class Layer:
    """One module `x` with one plan entry, and what it is fed with."""

    kind: str  # linear, embedding or experts
    rule: Any  # a plan entry
    outs: tuple[str | None, ...]  # the axis of each part's outputs
    ins: str | None = None
    bias: bool = True

    def module(self, c: Sizes) -> nn.Module:
        if self.kind == "experts":
            return ExpertStack(c.experts, c.hidden)
        if self.kind == "embedding":
            return nn.Embedding(c.width(self.outs[0] or "vocab"), c.hidden)
        return nn.Linear(c.width(self.ins), sum(map(c.width, self.outs)), bias=self.bias)

    def family(self) -> SimpleNamespace:
        """As ParallelPlan takes a model family; only the axes in use are declared."""
        declared = {
            "q|kv": gqa(q="heads", kv="kv_heads", unit="head_dim"),
            "vocab": vocab("words"),
            "experts": experts("experts"),
        }
        for axis in (*self.outs, self.ins):
            if axis not in (None, "q", "kv", "vocab", "experts"):
                declared[str(axis)] = even("size")
        return SimpleNamespace(
            model=lambda c: nn.ModuleDict({"x": self.module(c)}),
            axes=declared,
            plan={"x": self.rule},
        )

    def plan(self, ranks: int) -> ParallelPlan:
        return ParallelPlan.build(self.family(), Sizes(), ranks, replicate_limit=1.0)

    def works(self, ranks: int) -> bool:
        """Whether the layer can be cut for so many; one that is not cut at all always can."""
        plan = self.plan(1)
        return not plan.cuts or ranks in plan.feasible()

    def feed(self) -> list[Tensor]:
        """What the whole layer is fed with, step by step."""
        generator = torch.Generator().manual_seed(1)
        if self.kind == "embedding":
            return [torch.randint(0, Sizes().words, (n,), generator=generator) for n in STEPS]
        width = Sizes().width(self.ins)
        return [torch.randn(n, width, generator=generator, dtype=torch.float64) for n in STEPS]


class UnknownLayout(Exception):
    """Activations that this module cannot cut or put together."""


def variants(kind: type[Any]) -> Iterator[dict[str, str]]:
    """The defaults of an options dataclass, then each other choice of each of its fields."""
    yield {}
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        choices: tuple[Any, ...] = ()
        if typing.get_origin(hint) is Literal:
            choices = typing.get_args(hint)
        elif hint is bool:
            choices = (True, False)
        for choice in choices:
            if choice != field.default:
                yield {field.name: str(choice).lower() if hint is bool else str(choice)}


def text(name: str, axis: str | None, options: Mapping[str, str]) -> str:
    """`name:axis?option=value`."""
    settings = "&".join(f"{key}={value}" for key, value in options.items())
    return name + (f":{axis}" if axis else "") + (f"?{settings}" if settings else "")


def verify_layer(layer: Layer, ranks: int, strategy: Sharding) -> None:
    """The layer on `ranks` ranks computes what one rank does, and gives its weights back.

    Loading checks that every element of every parameter is written once and every checkpoint
    element is read. Ranks are threads, weights random float64. AssertionError if anything
    differs; UserError if the plan is refused; UnknownLayout if `layout()` speaks of something
    that this module does not know.
    """
    before, after = strategy.layout()
    try:
        _verify(layer, ranks, before, after)
    except UnknownLayout:
        raise
    except Exception as error:
        error.add_note(f"layout() says {before!r} of what comes in, and {after!r} of what goes out")
        raise


def _verify(layer: Layer, ranks: int, before: str, after: str) -> None:
    single, plan = layer.plan(1), layer.plan(ranks)
    checkpoint = random_checkpoint(single.expected_index("F64"))
    steps = layer.feed()
    with torch.inference_mode():
        whole = build_rank(single, 0, checkpoint, None).get_submodule("x")
        expected = [whole(x) for x in steps]

    def rank(comm: Communicator) -> tuple[list[Tensor], dict[str, Tensor], torch.dtype]:
        model = build_rank(plan, comm.rank, checkpoint, comm)
        module = model.get_submodule("x")
        own = [cut(x, before, plan.cuts, comm.rank, ranks) for x in steps]
        with torch.inference_mode():
            found = [module(x) for x in own]
            state = {name: x.clone() for name, x in model.state_dict().items()}
            model.bfloat16()
            x = own[0].bfloat16() if own[0].is_floating_point() else own[0]
            return found, state, module(x).dtype

    outputs, states, dtypes = zip(*ThreadGroup(ranks).run(rank), strict=True)
    for found, right in zip(zip(*outputs, strict=True), expected, strict=True):
        compare(found, right, after, plan.cuts, layer.outs)
    others = set(dtypes) - {torch.bfloat16}
    assert not others, f"of bfloat16 it makes {', '.join(map(str, others))}"
    back = unshard(plan, states)
    assert set(back) == set(checkpoint), sorted(set(back) ^ set(checkpoint))
    for name, tensor in checkpoint.items():
        assert torch.equal(back[name], tensor), f"{name} does not come back from {ranks} ranks"


def cut(x: Tensor, layout: str, cuts: Mapping[str, Partition], rank: int, ranks: int) -> Tensor:
    """A rank's share of an input [T, N] that lies as `layout` says."""
    if layout == "R":
        return x
    if layout == "T":
        start, stop = rows_of(len(x), ranks, rank)
        return x[start:stop]
    if layout.startswith("S:") and layout[2:] in cuts:
        axis = cuts[layout[2:]]
        own = x[..., columns(axis, rank)]
        padding = x.new_zeros(*x.shape[:-1], axis.local[rank] - own.shape[-1])
        return torch.cat((own, padding), -1)
    raise UnknownLayout(layout)


def columns(axis: Partition, rank: int) -> Tensor:
    """The elements of an axis that a rank holds, in its order, as an index."""
    spans = [torch.arange(start, stop) for start, stop in axis.spans[rank]]
    return torch.cat([torch.arange(0), *spans])


def compare(
    outputs: Sequence[Tensor],
    expected: Tensor,
    layout: str,
    cuts: Mapping[str, Partition],
    parts: Sequence[str | None],
) -> None:
    """All ranks' outputs, put together as `layout` says, are the whole output.

    `parts`: the axis of each part, where several are laid end to end.
    """
    if layout == "R":
        for found in outputs:
            _close(found, expected, "a rank's output")
            assert torch.equal(found, outputs[0]), "the ranks' outputs differ in their last bits"
    elif layout == "P":
        _close(torch.stack(list(outputs)).sum(0), expected, "the sum over ranks")
    elif layout == "T":
        _close(torch.cat(list(outputs)), expected, "the ranks' tokens end to end")
    else:
        names = [part.removeprefix("S:") for part in layout.split()]
        if not all(part.startswith("S:") for part in layout.split()) or not set(names) <= set(cuts):
            raise UnknownLayout(layout)
        axes = [part for part in parts if part] if set(names) == set(parts) else names
        _compare_columns(outputs, expected, [cuts[axis] for axis in axes])


def _compare_columns(
    outputs: Sequence[Tensor], expected: Tensor, axes: Sequence[Partition]
) -> None:
    seen = torch.zeros(expected.shape[-1], dtype=torch.bool)
    for rank, found in enumerate(outputs):
        if not found.numel():
            continue
        if found.shape == expected.shape:  # gathered on this rank alone
            _close(found, expected, f"rank {rank}'s output")
            seen[:] = True
            continue
        at = base = 0
        for axis in axes:
            own = columns(axis, rank)
            place = base + own
            _close(found[..., at : at + len(own)], expected[..., place], f"rank {rank}'s columns")
            seen[place] = True
            at, base = at + axis.local[rank], base + axis.size
        assert found.shape[-1] == at, f"rank {rank} gives {found.shape[-1]} columns instead of {at}"
    assert seen.all(), f"no rank computes the columns {torch.nonzero(~seen).flatten().tolist()}"


def _close(found: Tensor, expected: Tensor, who: str) -> None:
    torch.testing.assert_close(
        found, expected, rtol=TOLERANCE, atol=TOLERANCE, msg=lambda text: f"{who}: {text}"
    )
