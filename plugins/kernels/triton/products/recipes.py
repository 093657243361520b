"""Which way a product goes, and in what tiles: by its shape, by rule, or as it was measured.

What was measured is the time of a whole decode step on an H200 (`python -m tools.bench_linears`):
a kernel that is fast alone but fills the multiprocessors keeps its successors' weights out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

MOST_TOKENS = 256  # that any recipe is for
BY_RULE = (
    64  # that the rule is for: beyond, only what was measured is known to be faster than cuBLAS
)
SMALL = 16 << 20  # bytes of a weight that is read in a few microseconds


@dataclass(frozen=True)
class Rows:
    """Without the matrix units (`rows`)."""

    each: int  # rows of the weight of a warp: 1, 2 or 4
    warps: int


@dataclass(frozen=True)
class Once:
    """By the matrix units, the weight in shared memory at once (`once`)."""

    tokens: int
    outputs: int  # of a tile
    columns: int  # that are multiplied at a time
    splits: int
    chains: int  # sums that do not wait for each other
    warps: int


@dataclass(frozen=True)
class Loop:
    """By the matrix units, in a pipelined loop (`loop`)."""

    tokens: int
    outputs: int
    columns: int
    splits: int
    stages: int
    warps: int
    own: bool = False  # ask for the weight before the wait


@dataclass(frozen=True)
class Bulk:
    """By Hopper's bulk copies and its matrix units (`bulk`), for `Work.in_tiles`."""

    tokens: int  # of a tile: more of them are several tiles
    outputs: int
    columns: int
    splits: int
    stages: int
    warps: int
    early: int = 0  # blocks of columns of the weight that are asked for before the wait
    swap: bool = True  # the matrix units take the outputs by 64, not the tokens


Way = Rows | Once | Loop | Bulk
Recipe = Way | None  # None: by torch, with norm and activation apart


class Shape(NamedTuple):
    """A weight [outputs, inputs], or [2 outputs, inputs] whose halves are gate and up."""

    outputs: int
    inputs: int
    gated: bool = False

    @property
    def bytes(self) -> int:
        return self.outputs * self.inputs * (4 if self.gated else 2)


Table = Mapping[Shape, Mapping[int, Recipe]]  # -> by the most tokens that a recipe is for

H200: Table = {
    # Qwen3-0.6B: qkv, o, gate and up, down, head
    Shape(4096, 1024): {
        2: Rows(4, 4),
        16: Once(16, 32, 512, 1, 2, 4),
        32: Loop(32, 32, 256, 1, 3, 4, own=True),
        64: Loop(64, 32, 128, 1, 5, 4),
        128: Bulk(64, 64, 128, 1, 3, 4, early=8),
    },
    Shape(1024, 2048): {
        2: Rows(2, 4),
        16: Once(16, 32, 256, 4, 2, 4),
        32: Loop(32, 32, 256, 2, 3, 4, own=True),
        64: Loop(64, 32, 256, 2, 3, 4, own=True),
    },
    Shape(3072, 1024, True): {
        2: Rows(2, 8),
        16: Once(16, 32, 256, 1, 4, 4),
        32: Loop(32, 32, 128, 1, 4, 4, own=True),
        64: Bulk(64, 32, 128, 1, 7, 4, early=8, swap=False),
        128: None,
        256: Bulk(128, 64, 64, 1, 3, 8),
    },
    Shape(1024, 3072): {
        2: Rows(2, 4),
        16: Once(16, 32, 256, 4, 3, 4),
        32: Loop(32, 32, 256, 4, 3, 4, own=True),
        64: Loop(64, 32, 256, 4, 3, 4, own=True),
        128: Bulk(64, 64, 128, 4, 3, 4, early=6),
    },
    Shape(151_936, 1024): {2: Rows(2, 4), 32: None, 64: Bulk(64, 128, 128, 1, 4, 4, early=4)},
    # Qwen3-8B
    Shape(6144, 4096): {
        1: Rows(4, 8),
        16: Loop(16, 16, 256, 1, 4, 2),
        32: Bulk(32, 64, 128, 1, 8, 4, early=8),
        64: Bulk(64, 64, 128, 1, 7, 4, early=7),
        128: Bulk(128, 64, 64, 1, 8, 4, early=8),
    },
    Shape(4096, 4096): {
        1: Rows(2, 4),
        16: Loop(16, 64, 128, 2, 5, 4),
        32: Bulk(32, 64, 128, 2, 8, 4, early=8),
        64: Loop(64, 64, 128, 2, 5, 4),
    },
    Shape(12_288, 4096, True): {
        1: Rows(1, 8),
        16: Loop(16, 32, 128, 1, 5, 4),
        32: Loop(32, 128, 128, 1, 3, 4),
        64: None,
        128: Bulk(128, 128, 64, 1, 4, 8, early=4, swap=False),
    },
    Shape(4096, 12_288): {
        1: Rows(1, 4),
        16: Loop(16, 64, 128, 2, 5, 4),
        32: Bulk(32, 64, 128, 2, 8, 4, early=8),
        64: Loop(64, 64, 128, 2, 5, 4),
    },
    Shape(151_936, 4096): {
        1: Rows(2, 4),
        16: Loop(16, 128, 128, 1, 3, 4),
        32: Bulk(32, 128, 64, 1, 5, 4, early=5),
        64: Bulk(64, 128, 128, 1, 4, 4, early=4),
        128: Bulk(128, 256, 64, 1, 4, 8, early=4, swap=False),
    },
    # of one of two ranks
    Shape(3072, 4096): {
        1: Rows(4, 8),
        16: Once(16, 32, 256, 4, 2, 4),
        32: None,
        64: Loop(64, 64, 128, 2, 5, 4),
    },
    Shape(4096, 2048): {
        1: Rows(2, 4),
        16: Once(16, 32, 512, 1, 2, 4),
        32: None,
        64: Loop(64, 32, 128, 1, 5, 4),
    },
    Shape(6144, 4096, True): {
        1: Rows(1, 8),
        16: Loop(16, 16, 256, 1, 4, 2),
        32: None,
        64: Loop(64, 64, 128, 1, 4, 4),
    },
    Shape(4096, 6144): {1: Rows(2, 4), 16: Loop(16, 64, 128, 2, 5, 4), 64: None},
    Shape(75_968, 4096): {1: Rows(2, 4), 16: Loop(16, 64, 128, 1, 4, 4), 64: None},
}


@dataclass(frozen=True)
class Recipes:
    """A table of what was measured, and the rule for all other shapes."""

    table: Table = field(default_factory=lambda: H200)

    def any(self, outputs: int, inputs: int, tokens: int) -> bool:
        """Whether there may be one for a weight, of which only its user knows if it is gated."""
        shapes = Shape(outputs, inputs), Shape(outputs // 2, inputs, True)
        return tokens <= BY_RULE or any(self.of(shape, tokens) is not None for shape in shapes)

    def of(self, shape: Shape, tokens: int) -> Recipe:
        """For 1 to `MOST_TOKENS` tokens in two bytes."""
        for most, recipe in self.table.get(shape, {}).items():
            if tokens <= most:
                return recipe
        return by_rule(shape, tokens)


def by_rule(shape: Shape, tokens: int) -> Recipe:
    """What was best for the shapes nearest by."""
    if tokens > BY_RULE:
        return None
    small = shape.bytes <= SMALL
    if tokens <= (2 if small else 1) and shape.inputs <= 48 * 256:
        return Rows(1, 8) if shape.gated and not small else Rows(2, 4)
    if tokens <= 16 and small:
        return _once(shape)
    if tokens <= 16:
        return _large(shape)
    return _small(shape, 32 if tokens <= 32 else 64) if small else None


def _once(shape: Shape) -> Recipe:
    """Shares of at most 64 KiB, and as many programs as there are multiprocessors if it can be."""
    if shape.gated:
        if shape.inputs > 1024:
            return Loop(16, 32, 128, 1, 5, 4)
        return Once(16, 32, 256, 1, 4, 4)
    splits = 1
    while splits < 8 and (shape.inputs > 1024 * splits or shape.outputs * splits < 32 * 96):
        splits *= 2
    share = -(-shape.inputs // splits)
    columns = 512 if share >= 1024 else 256 if share >= 256 else 128
    return Once(16, 32, columns, splits, 2, 4)


def _large(shape: Shape) -> Recipe:
    """Large weights and up to 16 tokens."""
    if shape.gated:
        return Loop(16, 32, 128, 1, 5, 4)
    if shape.outputs >= 1 << 16:
        return Loop(16, 128, 128, 1, 3, 4)
    if shape.outputs > 4096 >= shape.inputs:
        return Loop(16, 16, 256, 1, 4, 2)
    return Loop(16, 64, 128, 2, 5, 4)


def _small(shape: Shape, tokens: int) -> Recipe:
    """Small weights and more than 16 tokens."""
    if shape.gated:
        return Loop(tokens, 32, 128, 1, 4, 4, own=True)
    splits = 1
    while splits < 4 and shape.outputs * splits < 32 * 96:
        splits *= 2
    return Loop(tokens, 32, 256, splits, 3, 4, own=True)
