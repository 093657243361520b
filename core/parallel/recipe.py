"""Recipes: what fills the parameters of one rank, as integers. No tensors, no files, no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

Range = tuple[int, ...]  # (start, stop) or (start, stop, step) on one dim
Box = tuple[Range, ...]  # one range per dim; () is a whole tensor without dims, or of one element
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Copy:
    """Read `src_box` of a checkpoint tensor into `dst_box` of a parameter.

    `perm`: dim i of the parameter is dim `perm[i]` of the checkpoint tensor.
    """

    src: str
    src_box: Box
    dst: str
    dst_box: Box
    perm: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Fill:
    """Write a constant: padding, or what another rank owns of a partial sum."""

    dst: str
    dst_box: Box
    value: float = 0.0


@dataclass(frozen=True, slots=True)
class Call:
    """Write what a function makes of several checkpoint regions; `fn` is `pkg.mod:function`.

    The function takes the regions as tensors, in order, and returns one of the destination's
    shape. It works on the elements of the shard alone, so that shards stay independent.
    """

    fn: str
    inputs: tuple[tuple[str, Box], ...]
    dst: str
    dst_box: Box


Op = Copy | Fill | Call
Recipe = list[Op]


def length(extent: Range) -> int:
    """Elements in a range."""
    step = extent[2] if len(extent) > 2 else 1
    return max(0, -(-(extent[1] - extent[0]) // step))


def volume(box: Box) -> int:
    """Elements in a box."""
    return math.prod(map(length, box))


def extent_of(box: Box) -> Shape:
    """The shape of a box."""
    return tuple(map(length, box))


def slices(box: Box) -> tuple[slice, ...]:
    """A box as an index for tensors and arrays."""
    return tuple(slice(*extent) for extent in box)


def whole(shape: Sequence[int]) -> Box:
    """The box of all elements."""
    return tuple((0, size) for size in shape)


def reads(op: Op) -> tuple[tuple[str, Box], ...]:
    """What an operation reads from the checkpoint."""
    if isinstance(op, Copy):
        return ((op.src, op.src_box),)
    return op.inputs if isinstance(op, Call) else ()


def chunks(box: Box, limit: int, dim: int = 0) -> Iterator[Box]:
    """A box cut along `dim` into pieces of at most `limit` elements (or one row)."""
    if not box:
        yield box
        return
    start, stop = box[dim][:2]
    step = box[dim][2] if len(box[dim]) > 2 else 1
    count = length(box[dim])
    row = 1
    for i, extent in enumerate(box):
        row *= length(extent) if i != dim else 1
    rows = max(1, limit // max(row, 1))
    for first in range(0, count, rows):
        last = min(first + rows, count)
        a, b = start + first * step, min(start + (last - 1) * step + 1, stop)
        piece = (a, b) if step == 1 else (a, b, step)
        yield (*box[:dim], piece, *box[dim + 1 :])


def renamed_reads(op: Op, name: Callable[[str], str]) -> Op:
    """The operation with other names for the checkpoint tensors that it reads."""
    if isinstance(op, Copy):
        return replace(op, src=name(op.src))
    if isinstance(op, Call):
        return replace(op, inputs=tuple((name(src), box) for src, box in op.inputs))
    return op


def text(box: Box, shape: Sequence[int] | None = None) -> str:
    """`[0:512,:]`, as a reader of Python would write it; `[...]` without dims."""
    if not box:
        return "[...]"
    parts = []
    for i, extent in enumerate(box):
        full = shape is not None and tuple(extent) == (0, shape[i])
        parts.append(":" if full else ":".join(map(str, extent)))
    return "[" + ",".join(parts) + "]"
