"""What happens to a tile of products when it is whole: scale, bias, activation, residual, store."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

HELD = tl.constexpr(4096)  # numbers that a program can hold beside its sums
MOST = tl.constexpr(4 * 4096)  # that it can when the products are done


@triton.jit
def prefetch(address):
    """Ask the second-level cache for the lines at the addresses, an int64 tile."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [address],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def squares_of(squares, m, live, parts, BM: tl.constexpr, PARTS: tl.constexpr):
    """The partial sums of squares [BM, PARTS] of the rows of x, or fewer sums of those."""
    EACH: tl.constexpr = MOST // BM if BM * PARTS > MOST else PARTS
    part = tl.arange(0, EACH)[None, :]
    at = squares + m[:, None] * parts + part
    found = tl.load(at, mask=live[:, None] & (part < parts), other=0.0)
    for first in tl.static_range(EACH, PARTS, EACH):
        more = live[:, None] & (part < parts - first)
        found += tl.load(at + first, mask=more, other=0.0)
    return found


@triton.jit
def early_squares(
    squares, m, live, parts, BM: tl.constexpr, PARTS: tl.constexpr, SCALE: tl.constexpr
):
    """They are asked for before the products, if a program can hold them until after those."""
    if SCALE and BM * PARTS <= HELD:
        return squares_of(squares, m, live, parts, BM, PARTS)
    else:
        return tl.zeros([1, 1], tl.float32)


@triton.jit
def finish(
    acc,  # [BM, BN] float32
    up,  # the same of the second half, if SILU
    squared,  # what `early_squares` gave
    squares,
    bias,
    gain,
    out,
    carried,
    out_squares,
    m,  # [BM] rows, of which those are there that are `live`
    n,  # [BN] columns
    live,
    eps,
    parts,
    N: tl.constexpr,
    K: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    PARTS: tl.constexpr,
    BIAS: tl.constexpr,
    SCALE: tl.constexpr,
    SILU: tl.constexpr,
    ADD: tl.constexpr,
):
    """Scale by the norm of x, add the bias, activate; add to the residual and carry its norm."""
    there = live[:, None]
    column = n
    if N % BN != 0:
        there = there & (n < N)[None, :]
        column = tl.minimum(n, N - 1)
    if SCALE:
        if BM * PARTS > HELD:
            squared = squares_of(squares, m, live, parts, BM, PARTS)
        scale = tl.rsqrt(tl.sum(squared, 1) / K + eps)[:, None]
        acc = acc * scale
        if SILU:
            up = up * scale
    if BIAS:
        acc += tl.load(bias + column).to(tl.float32)[None, :]
        if SILU:
            up += tl.load(bias + N + column).to(tl.float32)[None, :]
    if SILU:
        acc = acc * tl.sigmoid(acc) * up
    to = m[:, None] * N + n[None, :]
    if ADD:
        acc += tl.load(out + to, mask=there, other=0.0).to(tl.float32)
        # What is normed is the sum as the next layers will read it: rounded.
        acc = acc.to(out.dtype.element_ty).to(tl.float32)
        factor = tl.load(gain + column).to(tl.float32)[None, :]
        tl.store(carried + to, acc * factor, mask=there)
        total = tl.sum(tl.where(there, acc * acc, 0.0), 1)
        tl.store(out_squares + m * tl.num_programs(0) + tl.program_id(0), total, mask=live)
    tl.store(out + to, acc, mask=there)


@triton.jit
def add_up(
    partial,  # [S, BM, BN], or with SILU [S, 2, BM, BN]
    squared,  # these as in `finish`
    squares,
    bias,
    gain,
    out,
    carried,
    out_squares,
    m,
    n,
    live,
    tokens,
    eps,
    parts,
    N: tl.constexpr,
    K: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    S: tl.constexpr,
    PARTS: tl.constexpr,
    BIAS: tl.constexpr,
    SCALE: tl.constexpr,
    SILU: tl.constexpr,
    ADD: tl.constexpr,
):
    """Finish a tile of which all parts are there: add them up, always in the same order.

    By some rows at a time, where all would take more registers than their products did.
    """
    SIZE: tl.constexpr = BM * BN
    EACH: tl.constexpr = 2 * SIZE if SILU else SIZE
    ROWS: tl.constexpr = MOST // (2 * BN) if 2 * SIZE > MOST else BM
    for top in tl.static_range(0, BM, ROWS):
        if ROWS < BM:
            m = tl.program_id(2) * BM + top + tl.arange(0, ROWS)
            live = m < tokens
            squared = early_squares(squares, m, live, parts, ROWS, PARTS, SCALE)
        mine = partial + (top + tl.arange(0, ROWS)[:, None]) * BN + tl.arange(0, BN)[None, :]
        acc = tl.zeros([ROWS, BN], tl.float32)
        up = acc
        for i in tl.static_range(S):  # .cg: not from this multiprocessor's own cache
            acc += tl.load(mine + i * EACH, cache_modifier=".cg")
            if SILU:
                up += tl.load(mine + i * EACH + SIZE, cache_modifier=".cg")
        finish(
            acc, up, squared, squares, bias, gain, out, carried, out_squares, m, n, live, eps,
            parts, N, K, ROWS, BN, PARTS, BIAS, SCALE, SILU, ADD,
        )  # fmt: skip


@triton.jit
def settle(
    acc,  # these as in `finish`
    up,
    squared,
    squares,
    bias,
    gain,
    out,
    carried,
    out_squares,
    partial,  # [tiles, S, BM, BN] float32, twice as much if SILU: room
    arrivals,  # [tiles] int32: zeros, before and after
    m,
    n,
    live,
    tokens,
    eps,
    parts,
    N: tl.constexpr,
    K: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    S: tl.constexpr,
    PARTS: tl.constexpr,
    BIAS: tl.constexpr,
    SCALE: tl.constexpr,
    SILU: tl.constexpr,
    ADD: tl.constexpr,
):
    """Finish a tile whose columns of the weight are split S ways.

    The program that arrives last adds the parts up.
    """
    if S > 1:
        tile = tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)
        split = tl.program_id(1)
        SIZE: tl.constexpr = BM * BN
        EACH: tl.constexpr = 2 * SIZE if SILU else SIZE
        place = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
        mine = partial + tile * (S * EACH) + place
        tl.store(mine + split * EACH, acc)
        if SILU:
            tl.store(mine + split * EACH + SIZE, up)
        tl.debug_barrier()  # the stores of all threads come before the one that tells of them
        arrived = tl.atomic_add(arrivals + tile, 1, sem="acq_rel")
        if arrived == S - 1:
            add_up(
                partial + tile * (S * EACH), squared, squares, bias, gain, out, carried,
                out_squares, m, n, live, tokens, eps, parts, N, K, BM, BN, S, PARTS, BIAS, SCALE,
                SILU, ADD,
            )  # fmt: skip
            tl.store(arrivals + tile, 0)
    else:
        finish(
            acc, up, squared, squares, bias, gain, out, carried, out_squares, m, n, live, eps,
            parts, N, K, BM, BN, PARTS, BIAS, SCALE, SILU, ADD,
        )  # fmt: skip


@triton.jit(do_not_specialize=["eps", "parts"])
def scaled(
    x,  # [T, N]
    squares,  # [T, parts] float32
    out,  # [T, N]
    eps,
    parts,
    N: tl.constexpr,
    BLOCK: tl.constexpr,  # power of two, at least N
    PARTS: tl.constexpr,  # power of two, at least `parts`
    launch_pdl: tl.constexpr,
):
    """What was carried, as a norm apart would have left it. Grid (T,)."""
    if launch_pdl:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    part = tl.arange(0, PARTS)
    value = tl.load(x + row * N + column, mask=column < N, other=0.0).to(tl.float32)
    squared = tl.load(squares + row * parts + part, mask=part < parts, other=0.0)
    scale = tl.rsqrt(tl.sum(squared, 0) / N + eps)
    tl.store(out + row * N + column, value * scale, mask=column < N)
