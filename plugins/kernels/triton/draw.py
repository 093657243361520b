"""Draws a token a row in one read of the logits: the best of each slice, then the best of those.

A slice of the vocabulary may as well be the shard of a rank. `best_of_shard` then gives its winner
with its score, and `best_of_all` the winner of all ranks, from two numbers a row and rank.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from core.sampling.columns import COLUMN
from core.triton_launch import Launcher, power_of_two
from plugins.kernels.triton.noise import gumbel, key

WIDTH = tl.constexpr(len(COLUMN))
TEMPERATURE = tl.constexpr(COLUMN["temperature"])
STREAM0 = tl.constexpr(COLUMN["stream0"])
STREAM1 = tl.constexpr(COLUMN["stream1"])

FEW = 16  # rows up to which slices are short, so that every multiprocessor has one
NOBODY = tl.constexpr(2**31 - 1)  # more than any token's id


@triton.jit(do_not_specialize=["first"])
def _best_of_slice(
    logits,  # [S, VOCAB], STRIDE elements from row to row
    columns,  # [R, WIDTH] int32, of core.sampling.columns
    index,  # [S] the row of `columns`
    positions,  # [S]
    floors,  # [S] float32: logits below it are not drawn
    scores,  # [S, slices] float32, the best score of each slice, +inf for NaN
    ids,  # [S, slices] int32, whose it is
    first,  # the id of the first logit
    VOCAB: tl.constexpr,
    STRIDE: tl.constexpr,
    FLOOR: tl.constexpr,
    BLOCK: tl.constexpr,
    launch_pdl: tl.constexpr,
):
    """Grid (S, slices)."""
    if launch_pdl:
        gdc_launch_dependents()
        gdc_wait()
    s = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    place = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + s * STRIDE + place, mask=place < VOCAB, other=-float("inf"))
    x = x.to(tl.float32)
    row = columns + tl.load(index + s).to(tl.int64) * WIDTH
    temperature = tl.load(row + TEMPERATURE).to(tl.float32, bitcast=True)
    score = x
    if temperature > 0:
        position = tl.load(positions + s)
        k0 = key(tl.load(row + STREAM0), position)
        k1 = key(tl.load(row + STREAM1), position)
        score = x * (1.0 / temperature) + gumbel(first + place, k0, k1)
    if FLOOR:
        score = tl.where(x < tl.load(floors + s), -float("inf"), score)
    score = tl.where(x != x, float("inf"), score)
    best = tl.max(score, 0)
    winner = tl.min(tl.where(score == best, place, NOBODY), 0)
    slices = tl.num_programs(1)
    tl.store(scores + s * slices + part, best)
    tl.store(ids + s * slices + part, first + winner)


@triton.jit(
    do_not_specialize=["count", "row_stride", "part_stride"],
    do_not_specialize_on_alignment=range(4),
)
def _best_of_row(
    scores,  # [S, count] float32, any strides
    ids,  # [S, count], the same strides
    best_scores,  # [S] float32
    best_ids,  # [S] whole numbers
    count,
    row_stride,
    part_stride,
    BLOCK: tl.constexpr,
    JUDGE: tl.constexpr,  # the id is -1 where the best score is not finite
    launch_pdl: tl.constexpr,
):
    """Grid (S,). Of equal scores the one with the lowest id wins."""
    if launch_pdl:
        gdc_launch_dependents()
        gdc_wait()
    s = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, BLOCK)
    at = s * row_stride + part * part_stride
    score = tl.load(scores + at, mask=part < count, other=-float("inf"))
    winner = tl.load(ids + at, mask=part < count, other=NOBODY)
    best = tl.max(score, 0)
    chosen = tl.min(tl.where(score == best, winner, NOBODY), 0)
    if JUDGE:
        chosen = tl.where(tl.abs(best) < float("inf"), chosen, -1)
    tl.store(best_scores + s, best)
    tl.store(best_ids + s, chosen)


_launch_slices = Launcher(_best_of_slice)
_launch_rows = Launcher(_best_of_row)


def best(
    logits: Tensor,
    columns: Tensor,
    index: Tensor,
    positions: Tensor,
    floor: Tensor | None,
    pdl: bool,
    *,
    first: int = 0,
    vocab: int | None = None,
    into: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """The score [S] float32 and the id [S] int64 of the token that each row draws.

    logits [S, V]: ids from `first` on, of which the first `vocab` are tokens and the others
    padding. columns, index, positions: as in `core.sampling.rows.SamplingKernels`. A score is
    logit / temperature + noise, or the logit itself where the temperature is 0; +inf where a logit
    of the row is NaN or +inf, -inf where none is more. They are written `into` tensors, if given.
    """
    rows, size = logits.shape[0], vocab or logits.shape[1]
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    assert all(x.is_contiguous() for x in (columns, index, positions))
    assert floor is None or floor.is_contiguous()
    block, warps = (1024, 4) if rows <= FEW else (4096, 8)
    slices = -(-size // block)
    scores = torch.empty((rows, slices), dtype=torch.float32, device=logits.device)
    ids = torch.empty((rows, slices), dtype=torch.int32, device=logits.device)
    if rows:
        _launch_slices(
            (rows, slices, 1),
            (logits, columns, index, positions, scores if floor is None else floor, scores, ids),
            (first,),
            (size, logits.stride(0), floor is not None, block),
            warps=warps,
            pdl=pdl,
        )
    return _choose(scores, ids, pdl, into)


def best_of_shard(
    logits: Tensor,
    columns: Tensor,
    index: Tensor,
    positions: Tensor,
    floor: Tensor | None,
    first: int,
    size: int,
    pdl: bool,
) -> Tensor:
    """`best` as int32 [2, S]: the bits of scores, and ids, as ranks send them to each other."""
    found = torch.empty((2, len(logits)), dtype=torch.int32, device=logits.device)
    into = found[0].view(torch.float32), found[1]
    best(logits, columns, index, positions, floor, pdl, first=first, vocab=size, into=into)
    return found


def best_of_all(found: Tensor, pdl: bool) -> tuple[Tensor, Tensor]:
    """What `best_of_shard` gave for each shard, [shards, 2, S] -> ids [S] int64, scores [S]."""
    scores, ids = found.view(torch.float32)[:, 0], found[:, 1]
    chosen = _choose(scores.t(), ids.t(), pdl, judge=True)
    return chosen[1], chosen[0]


def _choose(
    scores: Tensor,
    ids: Tensor,
    pdl: bool,
    into: tuple[Tensor, Tensor] | None = None,
    judge: bool = False,
) -> tuple[Tensor, Tensor]:
    """[S, N] scores and ids -> of each row the best score and its id."""
    rows, count = scores.shape
    assert ids.stride() == scores.stride()
    if into is None:
        into = (
            torch.empty(rows, dtype=torch.float32, device=scores.device),
            torch.empty(rows, dtype=torch.int64, device=scores.device),
        )
    if rows:
        block = power_of_two(count)
        _launch_rows(
            (rows, 1, 1),
            (scores, ids, *into),
            (count, *scores.stride()),
            (block, judge),
            warps=min(max(1, block // 128), 8),
            pdl=pdl,
        )
    return into
