"""Axes: what a plan cuts, in which unit, and which elements of it each rank owns.

A model declares its axes with `even`, `gqa`, `vocab` and `experts` (or `axis` for a partitioner of
its own). A *partitioner*, found by name in the registry `partitions`, turns a declaration into one
`Partition` per axis. Nothing here imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

Span = tuple[int, int]  # [start, stop) in elements
Spans = tuple[Span, ...]

SIZES_TRIED = 64  # how far feasible sizes are listed when no axis has a limit of its own


class Infeasible(Exception):
    """An axis cannot be cut for so many ranks; the message is a clause that says why."""


@dataclass(frozen=True)
class Partition:
    """One axis, cut for every rank.

    `spans[rank]` are the elements that the rank reads, in the order in which it stores them;
    `local[rank]` is what it allocates, which is more when the axis is padded. One count of the
    config field behind the axis is `unit` elements (a head is `head_dim` of them).
    """

    size: int
    spans: tuple[Spans, ...]
    local: tuple[int, ...]
    unit: int = 1

    def count(self, rank: int) -> int:
        """The config field's value on this rank."""
        return self.local[rank] // self.unit


@dataclass(frozen=True)
class Axis:
    """A declaration: the partitioner's name, the config fields it narrows, and its settings.

    A setting that is a string names a config field wherever the partitioner wants a number.
    """

    kind: str
    fields: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)


def axis(kind: str, *fields: str, **settings: Any) -> Axis:
    """An axis cut by the partitioner registered as `kind`."""
    return Axis(kind, fields, settings)


def even(field: str, unit: int | str = 1, align: int = 1) -> Axis:
    """Contiguous shards of whole units whose numbers differ by at most one.

    They begin at multiples of `align`, too, where shards are large enough for that.
    """
    return axis("even", field, unit=unit, align=align)


def gqa(q: str, kv: str, unit: int | str) -> Axis:
    """Query and key/value heads cut together; `unit` is the size of one head."""
    return axis("gqa", q, kv, unit=unit)


def vocab(field: str, unit: int | str = 1) -> Axis:
    """Equal chunks of whole units, all padding behind the last real row."""
    return axis("vocab", field, unit=unit)


def experts(field: str, order: str = "linear", slots: Sequence[Sequence[int]] = ()) -> Axis:
    """Experts dealt out in order, round robin, or as `slots` says (one list of experts a rank)."""
    return axis("experts", field, order=order, slots=tuple(map(tuple, slots)))


class Partitioner:
    """Cuts one axis, or several that belong together, into one shard per rank.

    Subclass it, register the class in `partitions`, and declare axes with `axis("name", ...)`.
    `counts` are the values of the named config fields, in the order of the declaration.

    Errors: `cut` raises `Infeasible` with the reason. What else is raised ends the start.
    """

    interface: ClassVar[int] = 1  # the version of this contract that a component was written for
    arity: ClassVar[int] = 1  # how many config fields, and so how many axes, are cut together

    @dataclass(frozen=True)
    class Options:
        """Settings of the declaration, by name."""

    def __init__(self, counts: Sequence[int], options: Any) -> None:
        self.counts = tuple(counts)
        self.options = options

    def sizes(self) -> tuple[int, ...]:
        """Elements on each axis, uncut."""
        return self.counts

    def most(self) -> int | None:
        """The largest number of ranks that can work at all; None when any number can."""
        return None

    def cut(self, ranks: int, grain: Sequence[int]) -> tuple[Partition, ...]:
        """One partition per axis for `ranks` ranks.

        Cut only at multiples of `grain` elements, or at the end; a grain of 1 is the declared unit
        alone. Raises `Infeasible`.
        """
        raise NotImplementedError


def total(spans: Sequence[Span]) -> int:
    """Elements in all spans."""
    return sum(stop - start for start, stop in spans)


def stored(span: Span, size: int, divisor: int) -> Span | None:
    """The storage indices that hold `span` when one index stores `divisor` elements.

    None when the cut would go through a block. A span that lies wholly inside one block is legal:
    the ranks on both sides of the cut then keep a copy of that block's scale.
    """
    start, stop = span
    if start % divisor == 0 and (stop % divisor == 0 or stop == size):
        return start // divisor, -(-stop // divisor)
    if start // divisor == (stop - 1) // divisor:
        return start // divisor, start // divisor + 1
    return None


def partition(
    partitioner: Partitioner, ranks: int, divisors: Sequence[frozenset[int]]
) -> tuple[Partition, ...]:
    """Cut for `ranks`, respecting the block sizes that the storage formats have on each axis.

    Whole blocks are tried first; then the declared unit, if no cut goes through a block.
    Raises `Infeasible`.
    """
    most = partitioner.most()
    if most is not None and ranks > most:
        raise Infeasible(f"tensor={ranks} leaves a rank with nothing")
    grain = [math.lcm(1, *blocks) for blocks in divisors]
    try:
        return _cut(partitioner, ranks, grain)
    except Infeasible:
        if all(step == 1 for step in grain):
            raise
    cuts = _cut(partitioner, ranks, [1] * len(grain))
    for cut, blocks in zip(cuts, divisors, strict=True):
        for divisor in blocks:
            for spans in cut.spans:
                for span in spans:
                    if stored(span, cut.size, divisor) is None:
                        raise Infeasible(
                            f"tensor={ranks} would cut [{span[0]}, {span[1]}), which goes through "
                            f"a storage block of {divisor}"
                        )
    return cuts


def _cut(partitioner: Partitioner, ranks: int, grain: Sequence[int]) -> tuple[Partition, ...]:
    cuts = partitioner.cut(ranks, grain)
    for cut in cuts:
        assert len(cut.spans) == len(cut.local) == ranks, (partitioner, cut)
        assert all(total(s) <= n for s, n in zip(cut.spans, cut.local, strict=True)), cut
    return cuts


def feasible(partitioner: Partitioner, divisors: Sequence[frozenset[int]]) -> list[int]:
    """The numbers of ranks for which `partition` succeeds."""
    sizes = []
    for ranks in range(1, (partitioner.most() or SIZES_TRIED) + 1):
        try:
            partition(partitioner, ranks, divisors)
        except Infeasible:
            continue
        sizes.append(ranks)
    return sizes
