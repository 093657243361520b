"""Fused parameters: which part of which checkpoint tensor lands where on each rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.parallel.folding import folded, layer_of, starred, without_layer
from core.parallel.recipe import Box, Copy, Fill, Op, Shape, reads, text, whole

if TYPE_CHECKING:
    from core.parallel import Index, ParallelPlan

Span = tuple[int, int]  # [start, stop)


@dataclass(frozen=True)
class Landing:
    """A run of a rank's parameter along the fused dim, and the run of the tensor that fills it."""

    rank: int
    span: Span  # in the parameter
    source: int | None  # which of the sources; None: filled with a constant
    source_span: Span
    stride: int  # every so many rows of the source; 1: all of them
    text: str  # both regions in full


@dataclass(frozen=True)
class Source:
    """A checkpoint tensor that a fused parameter is made of."""

    name: str
    size: int  # along the fused dim


@dataclass(frozen=True)
class Fusion:
    """A parameter made of several regions, or the same one of several layers."""

    param: str
    module: str  # whose parameter it is, in the first of these layers
    dim: int  # on which the regions follow one another in the parameter
    sources: tuple[Source, ...]
    shapes: tuple[Shape, ...]  # of the parameter, by rank; () where a rank has nothing of it
    landings: tuple[Landing, ...]

    def size(self, rank: int) -> int:
        """The fused dim of the parameter on a rank."""
        shape = self.shapes[rank]
        return shape[self.dim] if shape else 0


def fusions(plan: ParallelPlan, index: Index, fold: bool = True) -> list[Fusion]:
    """Every parameter that some rank makes of several regions, in the order of the model."""
    ops: dict[str, list[list[Op]]] = {}
    for rank in range(plan.tensor):
        for op in plan.recipe(rank, index):
            ops.setdefault(op.dst, [[] for _ in range(plan.tensor)])[rank].append(op)
    kinds: dict[object, list[str]] = {}
    for param, by_rank in ops.items():
        if max(sum(len(reads(op)) for op in own) for own in by_rank) > 1:
            layer = layer_of(param) if fold else None
            alike = tuple(tuple(folded(op, layer) for op in own) for own in by_rank)
            kinds.setdefault((without_layer(param, layer), alike), []).append(param)
    shapes = [plan.shapes(rank) for rank in range(plan.tensor)]
    found = []
    for params in kinds.values():
        param = params[0]
        layers = [layer for p in params if (layer := layer_of(p)) is not None]
        made = _fusion(
            param,
            layers if len(params) > 1 else [],
            tuple(own.get(param, ()) for own in shapes),
            ops[param],
            index,
        )
        if made is not None:
            found.append(made)
    return found


def _fusion(
    param: str, layers: list[int], shapes: tuple[Shape, ...], ops: list[list[Op]], index: Index
) -> Fusion | None:
    """None when the regions do not follow one another on one dim alone."""
    dims = {dim for own in ops for dim in _varying([op.dst_box for op in own])}
    if len(dims) != 1:
        return None
    dim = dims.pop()

    def named(name: str) -> str:
        return starred(name, layers) if layers else name

    sources: dict[str, Source] = {}
    landings = []
    for rank, own in enumerate(ops):
        for op in own:
            span = op.dst_box[dim][0], op.dst_box[dim][1]
            there = f"rank {rank} {text(op.dst_box, shapes[rank])}"
            if isinstance(op, Fill):
                landings.append(Landing(rank, span, None, (0, 0), 1, f"{op.value} -> {there}"))
            for name, box in reads(op):
                shape = index[name][0]
                at = _source_dim(op, dim, len(shape))
                whole_box = box or whole(shape)
                extent = whole_box[at] if at is not None else (0, 1)
                size = shape[at] if at is not None else 1
                sources.setdefault(name, Source(named(name), size))
                landings.append(
                    Landing(
                        rank,
                        span,
                        list(sources).index(name),
                        (extent[0], extent[1]),
                        extent[2] if len(extent) > 2 else 1,
                        f"{named(name)}{text(whole_box, shape)} -> {there}",
                    )
                )
    return Fusion(
        named(param),
        param.rpartition(".")[0],
        dim,
        tuple(sources.values()),
        shapes,
        tuple(landings),
    )


def _varying(boxes: list[Box]) -> set[int]:
    """The dims on which boxes differ."""
    return {dim for box in boxes for dim in range(len(box)) if box[dim] != boxes[0][dim]}


def _source_dim(op: Op, dim: int, dims: int) -> int | None:
    """The dim of a source of `dims` dims that is dim `dim` of the parameter, if it has one."""
    if isinstance(op, Copy) and op.perm is not None and len(op.perm) == dims:
        return op.perm[dim]
    missing = len(op.dst_box) - dims  # one tensor for each slot of a stack
    return dim - missing if dim >= missing else None
