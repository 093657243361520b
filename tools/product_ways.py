"""Ways of a product that are worth a try for a shape: what `tools.bench_linears` chooses among."""

from __future__ import annotations

from collections.abc import Iterator

from plugins.kernels.triton.products.launch import ROOM
from plugins.kernels.triton.products.recipes import (
    MOST_TOKENS,
    Bulk,
    Loop,
    Once,
    Recipe,
    Rows,
    Shape,
)

SHARED = 227 << 10  # bytes of shared memory that a program can have
HALF = 113 << 10  # that two can have each, or one beside the next kernel's
MULTIPROCESSORS = 132
SMALL = 32 << 20  # bytes of a weight that may be asked for as a whole before the wait
READ = 256 << 10  # bytes of parts that the last program of a split tile may add up alone


def candidates(shape: Shape, tokens: int) -> Iterator[Recipe]:
    """Torch first."""
    yield None
    if tokens <= 2 and shape.inputs <= 48 * 256:
        pairs = ((4, 4), (2, 4), (1, 4), (2, 8), (1, 8), (4, 8))
        yield from (Rows(each, warps) for each, warps in pairs if not (shape.gated and each == 4))
    if 1 < tokens <= 16:
        yield from _once(shape)
    if 1 < tokens <= 64:
        yield from _loop(shape, tokens)
    if tokens > 16:
        yield from dict.fromkeys(bulk(shape, tokens))


def _once(shape: Shape) -> Iterator[Once]:
    halves = 2 if shape.gated else 1
    ways = (
        (32, 512, 1, 2, 4), (32, 256, 1, 4, 4), (16, 256, 1, 4, 2), (32, 256, 2, 2, 4),
        (32, 256, 4, 2, 4), (16, 256, 2, 4, 2), (64, 256, 4, 2, 4), (32, 256, 8, 2, 4),
    )  # fmt: skip
    for outputs, columns, splits, chains, warps in ways:
        share = -(-shape.inputs // (splits * columns)) * columns * 2 * halves * outputs
        if 16 << 10 <= share <= 128 << 10 and (splits == 1 or not shape.gated):
            yield Once(16, outputs, columns, splits, chains, warps)


def _loop(shape: Shape, tokens: int) -> Iterator[Loop]:
    halves = 2 if shape.gated else 1
    rows = 16 if tokens <= 16 else 32 if tokens <= 32 else 64
    ways = (
        (32, 256, 1, 3, 4), (32, 128, 1, 5, 4), (64, 128, 1, 4, 4), (128, 128, 1, 3, 4),
        (16, 256, 1, 4, 2), (32, 256, 2, 3, 4), (64, 128, 2, 5, 4), (32, 256, 4, 3, 4),
        (64, 128, 4, 4, 4), (128, 64, 2, 4, 4),
    )  # fmt: skip
    for outputs, columns, splits, stages, warps in ways:
        if (
            (splits > 1 and (shape.gated or shape.outputs > 1 << 13))
            or (rows > 16 and outputs == 16)
            or stages * (rows + halves * outputs) * columns * 2 > SHARED
            or -(-shape.outputs // outputs) * splits * rows * outputs > ROOM
        ):
            continue
        for own in (False, True) if shape.bytes < SMALL else (False,):
            yield Loop(rows, outputs, columns, splits, stages, warps, own)


# Tokens, rows of the weight, columns, warps, and whether the rows are swapped with the tokens. What
# a program reads beside the weight is its tokens, once for every tile of the weight: so tiles of
# many rows, or with a larger part of the tokens where rows are few.
TILES = {
    32: ((32, 128, 64, 4, True), (32, 64, 128, 4, True), (32, 128, 128, 4, True),
         (32, 256, 64, 8, True)),
    64: ((64, 128, 64, 4, True), (64, 64, 128, 4, True), (64, 128, 128, 4, True),
         (64, 256, 64, 8, True), (64, 32, 128, 4, False)),
    128: ((128, 128, 64, 8, True), (128, 64, 64, 4, True), (64, 128, 64, 4, True),
          (128, 256, 64, 8, False), (64, 64, 128, 4, True)),
    256: ((128, 128, 64, 8, True), (256, 128, 64, 8, True), (128, 64, 64, 4, True),
          (128, 256, 64, 8, False), (256, 64, 64, 8, False), (64, 64, 128, 4, True)),
}  # fmt: skip


def bulk(shape: Shape, tokens: int) -> Iterator[Bulk]:
    """With as many programs as fit onto the multiprocessors at once; the first is a fair guess."""
    if tokens > MOST_TOKENS:
        return
    large = shape.outputs >= 1 << 16
    for place, tile in enumerate(TILES[next(most for most in TILES if tokens <= most)]):
        rows, outputs, columns, warps, swap = tile
        stage = (rows + outputs) * columns * 2
        if shape.gated:  # these are rows of both halves
            outputs //= 2
            swap = swap and outputs >= 64
        if outputs < 32 or (rows < 64 and not swap):
            continue
        tiles = -(-shape.outputs // outputs) * -(-tokens // rows)
        fits = [(share, each) for share, each in SHARES if share >= 3 * stage]
        for share, each in fits[: 3 if place < 2 and not large else 1]:
            splits = max(each * MULTIPROCESSORS // tiles, 1)
            while splits > 1 and not _worth(shape, rows, outputs, splits, tiles):
                splits -= 1
            if tiles * splits < MULTIPROCESSORS // 2 - 2:
                continue
            blocks = -(-shape.inputs // (columns * splits))
            stages = min(share // stage, 8, blocks + 1)
            early = [blocks] if shape.bytes < SMALL else [min(stages, blocks)]
            if place == 0 and (share, each) == SHARES[0] and not large:
                early += [0, min(3 * stages, blocks)]
            for some in dict.fromkeys(early):
                yield Bulk(rows, outputs, columns, splits, stages, warps, some, swap)


# Of shared memory for a program, and programs of a multiprocessor. With room left, the next kernel
# can ask for its weight while this one runs.
SHARES = ((HALF, 1), (SHARED, 1), (HALF, 2))


def _worth(shape: Shape, rows: int, outputs: int, splits: int, tiles: int) -> bool:
    """Whether a split is: its parts are added up by one program, and each has some columns."""
    size = rows * outputs * (2 if shape.gated else 1)
    return (
        splits * size * 4 <= READ and tiles * splits * size <= ROOM and shape.inputs >= 256 * splits
    )
