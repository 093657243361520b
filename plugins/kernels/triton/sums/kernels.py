"""Collectives for small tensors: each a kernel whose programs talk to those of the same number."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from plugins.kernels.triton.sums.words import place, send, take, to_words, total


@triton.jit(do_not_specialize=["units"])
def one_shot(
    x,  # [count]
    out,  # [count]; may be x
    addresses,  # [RANKS] int64: every rank's memory
    turns,  # [blocks] int32
    stop,
    units,  # of UNIT numbers: 16 if that divides their count, so that 16 bytes are read at once
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    AREA: tl.constexpr,
    BLOCK: tl.constexpr,
    UNIT: tl.constexpr,
    launch_pdl: tl.constexpr,
):
    """Everybody sends all it has to everybody, and adds up what comes. Grid (count / BLOCK,)."""
    if launch_pdl:
        gdc_launch_dependents()
        gdc_wait()
    count = units * UNIT
    block = tl.program_id(0)
    turn = tl.load(turns + block)
    at = tl.arange(0, BLOCK)
    here = block * BLOCK + at < count
    value = tl.load(x + block * BLOCK + at, mask=here, other=0.0)
    words = to_words(value)
    for r in tl.static_range(RANKS):
        if r != RANK:
            send(words, place(addresses, r, block, turn, RANK, RANKS, AREA), at, here)
    acc = total(value, words, addresses, block, turn, at, here, stop, RANK, RANKS, AREA)
    tl.store(out + block * BLOCK + at, acc, mask=here)
    tl.store(turns + block, turn + 1)


@triton.jit(do_not_specialize=["units"])
def two_shot(
    x,  # these as in `one_shot`
    out,
    addresses,
    turns,
    stop,
    units,  # of UNIT numbers: 16 if that divides their count, so that 16 bytes are read at once
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    AREA: tl.constexpr,
    PART: tl.constexpr,
    UNIT: tl.constexpr,
    launch_pdl: tl.constexpr,
):
    """Each rank adds up one part, and sends the sum to all. Grid (count / (RANKS * PART),).

    A block sends 2 (RANKS - 1) / RANKS times its numbers in place of RANKS - 1 times. The second
    half of an area is for the sums.
    """
    if launch_pdl:
        gdc_launch_dependents()
        gdc_wait()
    BITS: tl.constexpr = x.dtype.element_ty.primitive_bitwidth
    count = units * UNIT
    block = tl.program_id(0)
    turn = tl.load(turns + block)
    at = tl.arange(0, PART)
    first = block * (RANKS * PART)
    for r in tl.static_range(RANKS):
        if r != RANK:
            theirs = first + r * PART + at
            words = to_words(tl.load(x + theirs, mask=theirs < count, other=0.0))
            to = place(addresses, r, block, turn, RANK, RANKS, AREA)
            send(words, to, at, theirs < count)
    mine = first + RANK * PART + at
    value = tl.load(x + mine, mask=mine < count, other=0.0)
    acc = total(
        value, to_words(value), addresses, block, turn, at, mine < count, stop, RANK, RANKS, AREA
    )
    summed = to_words(acc.to(value.dtype))
    for r in tl.static_range(RANKS):
        if r != RANK:
            to = place(addresses, r, block, turn, RANK, RANKS, AREA)
            send(summed, to, PART + at, mine < count)
    tl.store(out + mine, summed.to(value.dtype, bitcast=True), mask=mine < count)
    for r in tl.static_range(RANKS):
        if r != RANK:
            theirs = first + r * PART + at
            here = place(addresses, RANK, block, turn, r, RANKS, AREA)
            words = take(here, PART + at, theirs < count, stop, BITS)
            tl.store(out + theirs, words.to(value.dtype, bitcast=True), mask=theirs < count)
    tl.store(turns + block, turn + 1)


@triton.jit(do_not_specialize=["units"])
def gather(
    x,  # [count] int32
    out,  # [RANKS, count]
    addresses,
    turns,
    stop,
    units,  # of UNIT numbers: 16 if that divides their count, so that 16 bytes are read at once
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    AREA: tl.constexpr,
    BLOCK: tl.constexpr,
    UNIT: tl.constexpr,
    launch_pdl: tl.constexpr,
):
    """Everybody's words, end to end. Grid (count / BLOCK,)."""
    if launch_pdl:
        gdc_launch_dependents()
        gdc_wait()
    count = units * UNIT
    block = tl.program_id(0)
    turn = tl.load(turns + block)
    at = tl.arange(0, BLOCK)
    here = block * BLOCK + at < count
    words = to_words(tl.load(x + block * BLOCK + at, mask=here, other=0))
    for r in tl.static_range(RANKS):
        if r != RANK:
            send(words, place(addresses, r, block, turn, RANK, RANKS, AREA), at, here)
    for r in tl.static_range(RANKS):
        to = out + r * count + block * BLOCK + at
        if r == RANK:
            tl.store(to, words, mask=here)
        else:
            own = place(addresses, RANK, block, turn, r, RANKS, AREA)
            tl.store(to, take(own, at, here, stop, 32), mask=here)
    tl.store(turns + block, turn + 1)
