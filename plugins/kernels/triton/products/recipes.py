"""Which way a product goes, and in what tiles: by its shape, by rule, or as it was measured.

What was measured is the time of a whole decode step on an H200 (`python -m tools.bench_linears`):
a kernel that is fast alone but fills the multiprocessors keeps its successors' weights out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

MOST_TOKENS = 64  # from there on cuBLAS is as fast
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


Recipe = Rows | Once | Loop | None  # None: by torch, with norm and activation apart


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
        64: Loop(64, 32, 256, 1, 3, 4, own=True),
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
        64: Loop(64, 32, 128, 1, 4, 4, own=True),
    },
    Shape(1024, 3072): {
        2: Rows(2, 4),
        16: Once(16, 32, 256, 4, 3, 4),
        32: Loop(32, 32, 256, 4, 3, 4, own=True),
        64: Loop(64, 32, 256, 4, 3, 4, own=True),
    },
    Shape(151_936, 1024): {2: Rows(2, 4), 64: None},
    # Qwen3-8B
    Shape(6144, 4096): {1: Rows(4, 8), 16: Loop(16, 16, 256, 1, 4, 2), 64: None},
    Shape(4096, 4096): {1: Rows(2, 4), 16: Loop(16, 64, 128, 2, 5, 4), 64: None},
    Shape(12_288, 4096, True): {1: Rows(1, 8), 16: Loop(16, 32, 128, 1, 5, 4), 64: None},
    Shape(4096, 12_288): {1: Rows(1, 4), 16: Loop(16, 64, 128, 2, 5, 4), 64: None},
    Shape(151_936, 4096): {1: Rows(2, 4), 16: Loop(16, 128, 128, 1, 3, 4), 64: None},
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

    def of(self, shape: Shape, tokens: int) -> Recipe:
        """For 1 to `MOST_TOKENS` tokens in two bytes."""
        for most, recipe in self.table.get(shape, {}).items():
            if tokens <= most:
                return recipe
        return by_rule(shape, tokens)


def by_rule(shape: Shape, tokens: int) -> Recipe:
    """What was best for the shapes nearest by."""
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
