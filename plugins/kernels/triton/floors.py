"""min_p, top_k and top_p as the smallest logit that may be drawn, without sorting the vocabulary.

Whatever asks for a number of tokens, or for an amount of probability, asks for the largest value t
such that the tokens with logits of at least t have it together. t is found by bisection over the
values that the logits' type can have, which are as many as its bits: 16 steps at most for bfloat16.

Few tokens of a row can matter. `_survey` reads the row once and notes the largest logit of every
group of 128. The k-th largest of those is no more than the k-th largest logit, so tokens of other
groups are out, and the bisection runs over about k groups, which one program holds in its
registers. Where more groups are left, it reads the rest of them again at each step.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from core.sampling.columns import COLUMN
from core.triton_launch import Launcher, power_of_two

WIDTH = tl.constexpr(len(COLUMN))
TEMPERATURE = tl.constexpr(COLUMN["temperature"])
TOP_K = tl.constexpr(COLUMN["top_k"])
TOP_P = tl.constexpr(COLUMN["top_p"])
MIN_P = tl.constexpr(COLUMN["min_p"])

GROUP = tl.constexpr(128)  # neighbouring tokens with one entry in the survey
HELD = tl.constexpr(64)  # groups that a program holds in its registers
SURVEYED = tl.constexpr(32)  # groups that a program of the survey reads
MARGIN = tl.constexpr(0.01)  # more than what rounding adds to a logarithm

UNUSED_BITS = {torch.float32: 0, torch.float16: 13, torch.bfloat16: 16}
"""How many of the lowest bits are 0 when a number of the type is written as float32."""


@triton.jit
def _survey(
    logits,  # [S, VOCAB], STRIDE elements from row to row
    columns,  # [R, WIDTH] int32, of core.sampling.columns
    index,  # [S] the row of `columns`
    peaks,  # [S, GROUPS] float32, the largest logit of each group
    masses,  # [S, GROUPS] float32, its sum of exp((logit - peak) / temperature)
    VOCAB: tl.constexpr,
    STRIDE: tl.constexpr,
    GROUPS: tl.constexpr,
    launch_pdl: tl.constexpr,
):
    """Grid (S, GROUPS / SURVEYED). Rows that ask for nothing are not read."""
    if launch_pdl:
        gdc_launch_dependents()
        gdc_wait()
    s = tl.program_id(0).to(tl.int64)
    temperature, top_k, top_p, min_p = _asked(columns + tl.load(index + s).to(tl.int64) * WIDTH)
    if (temperature > 0) & ((top_k > 0) | (top_p < 1) | (min_p > 0)):
        group = tl.program_id(1) * SURVEYED + tl.arange(0, SURVEYED)
        token = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        x = tl.load(logits + s * STRIDE + token, mask=token < VOCAB, other=-float("inf"))
        x = x.to(tl.float32)
        peak = tl.max(x, 1)
        tl.store(peaks + s * GROUPS + group, peak, mask=group < GROUPS)
        if (top_k == 0) & (top_p < 1):
            above = tl.where(peak == -float("inf"), 0.0, peak)[:, None]  # -inf less -inf is NaN
            mass = tl.sum(tl.exp((x - above) * (1.0 / temperature)), 1)
            tl.store(masses + s * GROUPS + group, mass, mask=group < GROUPS)


@triton.jit
def _find_floors(
    logits,  # these six as in `_survey`
    columns,
    index,
    peaks,
    masses,
    floors,  # [S] float32
    members,  # [S, GROUPS] int32: room for the groups that are left
    VOCAB: tl.constexpr,
    STRIDE: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,  # power of two, at least GROUPS
    SHIFT: tl.constexpr,  # unused bits of the logits' type
    launch_pdl: tl.constexpr,
):
    """Grid (S,)."""
    if launch_pdl:
        gdc_launch_dependents()
        gdc_wait()
    s = tl.program_id(0).to(tl.int64)
    temperature, top_k, top_p, min_p = _asked(columns + tl.load(index + s).to(tl.int64) * WIDTH)
    floor = tl.full((), -float("inf"), tl.float32)
    if (temperature > 0) & ((top_k > 0) | (top_p < 1) | (min_p > 0)):
        peak = _row_of(peaks, s, -float("inf"), GROUPS, BLOCK)
        best = tl.max(peak, 0)
        if (best > -float("inf")) & (best < float("inf")):  # else there is no distribution
            if min_p > 0:
                floor = best + temperature * tl.log(min_p)
            if (top_k > 0) | (top_p < 1):
                mass = _row_of(masses, s, 0.0, GROUPS, BLOCK)
                row = logits + s * STRIDE
                mine = members + s * GROUPS
                floor = _top(
                    floor, top_k, top_p, min_p > 0, temperature, best, peak, mass, row, mine,
                    VOCAB, GROUPS, BLOCK, SHIFT,
                )  # fmt: skip
    tl.store(floors + s, floor)


@triton.jit
def _top(
    floor, top_k, top_p, has_floor, temperature, best, peak, mass, row, members,
    VOCAB: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """`floor`, raised by top_k and top_p."""
    rate = 1.0 / temperature
    top_k = tl.minimum(top_k, VOCAB)
    total = tl.full((), 0.0, tl.float32)
    # `low` is a bound: what is found below is not less, except where `floor` is more anyway
    low = tl.full((), -float("inf"), tl.float32)
    if top_k > 0:
        if top_k <= GROUPS:
            low = _kth_largest(peak, top_k, best, SHIFT)
    elif not has_floor:
        # Tokens that lie c temperatures below the best have at most VOCAB exp(-c) of its
        # probability together: c is such that this is less than what top_p leaves out.
        total = tl.sum(tl.where(mass > 0, mass * tl.exp((peak - best) * rate), 0.0), 0)
        low = best - temperature * (tl.log(VOCAB / ((1 - top_p) * total)) + MARGIN)
    low = tl.maximum(low, floor)
    group = tl.arange(0, BLOCK)
    left = (peak >= low) & (group < GROUPS)
    tl.store(members + tl.cumsum(left.to(tl.int32), 0) - 1, group, mask=left)
    count = tl.sum(left.to(tl.int32), 0)
    tl.debug_barrier()  # what one thread stored is read by others
    x = _group_logits(row, members, 0, count, VOCAB)
    if top_k > 0:
        goal = top_k.to(tl.float32)
        last = _largest(goal, low, best, 0.0, x, row, members, count, VOCAB, SHIFT)
        floor = tl.maximum(floor, last)
    if top_p < 1:
        if (top_k > 0) | has_floor:
            total = _mass(floor, best, rate, x, row, members, count, VOCAB)
        low = tl.maximum(low, floor)
        last = _largest(top_p * total, low, best, rate, x, row, members, count, VOCAB, SHIFT)
        floor = tl.maximum(floor, last)
    return floor


@triton.jit
def _row_of(table, s, other, GROUPS: tl.constexpr, BLOCK: tl.constexpr):
    """Row s of a survey's table [S, GROUPS] -> [BLOCK]."""
    group = tl.arange(0, BLOCK)
    return tl.load(table + s * GROUPS + group, mask=group < GROUPS, other=other)


@triton.jit
def _asked(row):
    """temperature, top_k, top_p and min_p of a row of the columns."""
    return (
        tl.load(row + TEMPERATURE).to(tl.float32, bitcast=True),
        tl.load(row + TOP_K),
        tl.load(row + TOP_P).to(tl.float32, bitcast=True),
        tl.load(row + MIN_P).to(tl.float32, bitcast=True),
    )


@triton.jit
def _group_logits(row, members, start, count, VOCAB: tl.constexpr):
    """Logits [HELD, GROUP] float32 of members [start, start + HELD) of `count`, -inf for none."""
    at = start + tl.arange(0, HELD)
    group = tl.load(members + at, mask=at < count, other=0)
    token = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    there = (at < count)[:, None] & (token < VOCAB)
    return tl.load(row + token, mask=there, other=-float("inf")).to(tl.float32)


@triton.jit
def _mass(t, best, rate, x, row, members, count, VOCAB: tl.constexpr):
    """Sum of exp((logit - best) * rate) over logits from t up; x: those of the first members."""
    total = tl.where(x >= t, tl.exp((x - best) * rate), 0.0)
    start = tl.full((), HELD, tl.int32)
    while start < count:  # seldom
        y = _group_logits(row, members, start, count, VOCAB)
        total += tl.where(y >= t, tl.exp((y - best) * rate), 0.0)
        start += HELD
    return tl.sum(total)


@triton.jit
def _largest(
    goal, low, best, rate, x, row, members, count, VOCAB: tl.constexpr, SHIFT: tl.constexpr
):
    """The largest t from `low` to `best` with at least `goal` of `_mass`; rate 0 counts tokens."""
    least = _key(low, SHIFT)
    most = _key(best, SHIFT)
    while least < most:
        middle = (least | most) - ((least ^ most) >> 1)  # their mean, rounded up
        enough = _mass(_value(middle, SHIFT), best, rate, x, row, members, count, VOCAB) >= goal
        least = tl.where(enough, middle, least)
        most = tl.where(enough, most, middle - 1)
    return _value(least, SHIFT)


@triton.jit
def _kth_largest(x, k, best, SHIFT: tl.constexpr):
    """The k-th largest of x, the largest of which is `best`."""
    least = _key(tl.full((), -float("inf"), tl.float32), SHIFT)
    most = _key(best, SHIFT)
    while least < most:
        middle = (least | most) - ((least ^ most) >> 1)
        enough = tl.sum((x >= _value(middle, SHIFT)).to(tl.int32), 0) >= k
        least = tl.where(enough, middle, least)
        most = tl.where(enough, most, middle - 1)
    return _value(least, SHIFT)


@triton.jit
def _key(x, SHIFT: tl.constexpr):
    """An int32 for a float32, in the same order, without the bits that its type does not use."""
    bits = x.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> SHIFT


@triton.jit
def _value(key, SHIFT: tl.constexpr):
    """The float32 of a key. The bits that `_key` dropped are 1 where the number is negative."""
    bits = (key << SHIFT) | ((key >> 31) & ((1 << SHIFT) - 1))
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


_launch_survey = Launcher(_survey)
_launch_floors = Launcher(_find_floors)


def floors(logits: Tensor, columns: Tensor, index: Tensor, pdl: bool) -> Tensor:
    """The smallest logit that each row may draw, [S] float32; -inf where a row asks for nothing.

    logits [S, V]; columns [R, C] of `core.sampling.columns`, index [S] the rows there. As in vLLM,
    min_p, top_k and top_p apply in this order, each to what the one before has left. Tokens that
    tie with the last one kept are kept. top_p compares sums in float32: where one comes within
    1e-6 of top_p, the border may lie one token further up or down than in exact arithmetic.
    """
    rows, size = logits.shape
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    assert all(x.is_contiguous() for x in (columns, index))
    assert size < 1 << 24, "counts are kept in float32"
    groups = -(-size // GROUP.value)
    floats = {"dtype": torch.float32, "device": logits.device}
    peaks, masses = (torch.empty((rows, groups), **floats) for _ in range(2))
    members = torch.empty((rows, groups), dtype=torch.int32, device=logits.device)
    found = torch.empty(rows, **floats)
    if rows:
        constants = (size, logits.stride(0), groups)
        _launch_survey(
            (rows, -(-groups // SURVEYED.value), 1),
            (logits, columns, index, peaks, masses),
            (),
            constants,
            warps=4,
            pdl=pdl,
        )
        _launch_floors(
            (rows, 1, 1),
            (logits, columns, index, peaks, masses, found, members),
            (),
            (*constants, power_of_two(groups), UNUSED_BITS[logits.dtype]),
            warps=16,
            pdl=pdl,
        )
    return found
