"""Regions: which ranks read which part of every checkpoint tensor, as rectangles of elements.

A tensor is laid out flat: a matrix as it is, a vector as one column, a stack of matrices as their
rows one after another.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import TYPE_CHECKING

from core.parallel.folding import layer_of, starred, without_layer
from core.parallel.recipe import Box, Range, Shape, length, reads, whole

if TYPE_CHECKING:
    from core.parallel import Index, ParallelPlan

Span = tuple[int, int]  # [start, stop)
Rectangle = tuple[Span, Span]  # rows, columns
Ranks = tuple[int, ...]


@dataclass(frozen=True)
class Region:
    """A rectangle of a tensor and the ranks that read it; no other rank reads any of it."""

    rows: Span
    columns: Span
    ranks: Ranks

    @property
    def elements(self) -> int:
        return (self.rows[1] - self.rows[0]) * (self.columns[1] - self.columns[0])


@dataclass(frozen=True)
class TensorMap:
    """A checkpoint tensor, or the same one of several layers that are cut alike."""

    name: str
    names: tuple[str, ...]  # those that it stands for
    shape: Shape
    dtype: str
    regions: tuple[Region, ...]

    @property
    def own(self) -> str:
        """The name's last components: the module and its parameter."""
        return ".".join(self.name.split(".")[-2:])

    @property
    def parent(self) -> str:
        """What stands before those."""
        return ".".join(self.name.split(".")[:-2])

    @property
    def flat(self) -> tuple[int, int]:
        """Rows and columns of the flat layout."""
        return flat_shape(self.shape)


def flat_shape(shape: Shape) -> tuple[int, int]:
    """Rows and columns of a tensor's flat layout."""
    if len(shape) < 2:
        return math.prod(shape), 1
    return math.prod(shape[:-1]), shape[-1]


def tensor_maps(plan: ParallelPlan, index: Index, fold: bool = True) -> list[TensorMap]:
    """Every tensor of the checkpoint, in the order in which ranks read them, unread ones last."""
    boxes: dict[str, list[list[Box]]] = {}
    for rank in range(plan.tensor):
        for op in plan.recipe(rank, index):
            for name, box in reads(op):
                boxes.setdefault(name, [[] for _ in range(plan.tensor)])[rank].append(box)
    for name in index:
        boxes.setdefault(name, [[] for _ in range(plan.tensor)])
    known: dict[object, tuple[Region, ...]] = {}
    kinds: dict[object, list[str]] = {}
    for name, by_rank in boxes.items():
        shape, dtype = index[name]
        cut = shape, tuple(map(tuple, by_rank))
        if cut not in known:
            known[cut] = regions(shape, by_rank)
        common = without_layer(name, layer_of(name)) if fold else name
        kinds.setdefault((common, shape, dtype, known[cut]), []).append(name)
    found = []
    for names in kinds.values():
        name, (shape, dtype) = names[0], index[names[0]]
        cut = shape, tuple(map(tuple, boxes[name]))
        if len(names) > 1:
            name = starred(name, [layer for n in names if (layer := layer_of(n)) is not None])
        found.append(TensorMap(name, tuple(names), shape, dtype, known[cut]))
    return found


def regions(shape: Shape, boxes: Sequence[Iterable[Box]]) -> tuple[Region, ...]:
    """Cut a tensor into rectangles, each read by the same ranks. `boxes[rank]` is what one reads.

    What nobody reads is in no region.
    """
    read = [_joined([piece for box in given for piece in _flat(box, shape)]) for given in boxes]
    row_cuts = sorted({edge for pieces in read for rows, _ in pieces for edge in rows})
    column_cuts = sorted({edge for pieces in read for _, columns in pieces for edge in columns})
    row_at = {edge: i for i, edge in enumerate(row_cuts)}
    column_at = {edge: i for i, edge in enumerate(column_cuts)}
    cells: dict[tuple[int, int], list[int]] = {}
    for rank, pieces in enumerate(read):
        for rows, columns in pieces:
            for cell in product(
                range(row_at[rows[0]], row_at[rows[1]]),
                range(column_at[columns[0]], column_at[columns[1]]),
            ):
                owners = cells.setdefault(cell, [])
                if not owners or owners[-1] != rank:
                    owners.append(rank)
    by_ranks: dict[Ranks, list[Rectangle]] = {}
    for (i, j), owners in sorted(cells.items()):
        cell_rows, cell_columns = row_cuts[i : i + 2], column_cuts[j : j + 2]
        by_ranks.setdefault(tuple(owners), []).append(
            ((cell_rows[0], cell_rows[1]), (cell_columns[0], cell_columns[1]))
        )
    found = [
        Region(rows, columns, ranks)
        for ranks, rectangles in by_ranks.items()
        for rows, columns in _joined(rectangles)
    ]
    return tuple(sorted(found, key=lambda region: (region.rows, region.columns)))


def _flat(box: Box, shape: Shape) -> list[tuple[Range, Range]]:
    """A box in the flat layout: one piece for each run of rows."""
    box = box or whole(shape)
    if not all(map(length, box)):
        return []
    if len(box) < 2:
        return [(box[0] if box else (0, 1), (0, 1))]
    *leading, rows, columns = box
    pieces = []
    for index in product(*(range(*extent) for extent in leading)):
        at = 0
        for number, size in zip(index, shape, strict=False):
            at = at * size + number
        at *= shape[-2]
        pieces.append(((at + rows[0], at + rows[1], *rows[2:]), columns))
    return pieces


def _joined(pieces: Iterable[tuple[Range, Range]]) -> list[Rectangle]:
    """The same elements in fewer rectangles: pieces that share their columns, or their rows."""
    by_columns: dict[Range, list[Range]] = {}
    for rows, columns in pieces:
        by_columns.setdefault(columns, []).append(rows)
    by_rows: dict[Span, list[Range]] = {}
    for columns, spans in by_columns.items():
        for span in runs(spans):
            by_rows.setdefault(span, []).append(columns)
    return [(rows, columns) for rows, spans in by_rows.items() for columns in runs(spans)]


def runs(spans: Iterable[Range]) -> list[Span]:
    """Ranges, also such with steps, as few and as long ones without steps as can be, in order."""
    plain: list[Span] = []
    for span in spans:
        if len(span) > 2 and span[2] > 1:
            plain += [(at, at + 1) for at in range(*span)]
        else:
            plain.append((span[0], span[1]))
    merged: list[Span] = []
    for start, stop in sorted(plain):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        elif stop > start:
            merged.append((start, stop))
    assert all(a[1] < b[0] for a, b in pairwise(merged)), merged
    return merged
