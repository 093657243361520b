"""Attention of requests that bring one query token each, over the paged cache.

Split-KV (Dao et al. 2023, Flash-Decoding): S programs share the context of one request and one
key/value head, and the last to arrive joins their results. The query heads of a key/value head are
the rows of one tile, so that keys and values are read once. No length is in the grid, so a CUDA
graph may hold the launch; splits that have no tokens end at once.

With PDL (programmatic dependent launch) the kernel may start before its predecessor has ended.
Until `gdc_wait` it reads nothing but lengths, which were complete long before.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from plugins.attention.triton.tiles import (
    absorb,
    load_keys,
    load_values,
    settle,
    share,
    token_offsets,
)

# Pointers and numbers that differ between steps without making a difference to the code. Views into
# one buffer lie anywhere, and Triton would compile again for those that are aligned.
INDEXES = [
    "table_ptr",
    "context_ptr",
    "position_ptr",
    "slot_ptr",
    "order_ptr",
    "start_ptr",
    "table_row",
    "scale",
    "eps",
    "window",
    "low",
    "requests",
]


@triton.jit
def walk(
    q,
    keys,
    values,
    table,
    first,
    stop,
    start,
    scale,
    peak,
    total,
    acc,
    page_stride,
    token_stride,
    D: tl.constexpr,
    DP: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    WINDOWED: tl.constexpr,
):
    """Absorb tokens [first, stop), of which those before `start` lie outside of the window."""
    n = tl.arange(0, TILE)
    for at in tl.range(first, stop, TILE, num_stages=STAGES):
        seen = at + n < stop
        if WINDOWED:
            seen = seen & (at + n >= start)
        offsets = token_offsets(table, at, stop, seen, page_stride, token_stride, PAGE, TILE)
        k = load_keys(keys, offsets, seen, D, DP, True).to(q.dtype)
        v = load_values(values, offsets, seen, D, DP, True).to(q.dtype)
        peak, total, acc = absorb(q, k, v, seen[None, :], scale, peak, total, acc, True)
    return peak, total, acc


@triton.jit(do_not_specialize=INDEXES)
def decode(
    q_ptr,  # [T, H, D]
    k_ptr,  # [pages, page_size, KV, D]
    v_ptr,
    out_ptr,  # [T, H, D]
    parts_ptr,  # [groups, S, R, DP]
    peaks_ptr,  # [groups, S, R]
    totals_ptr,
    arrivals_ptr,  # [groups]
    table_ptr,  # [B, P]
    context_ptr,  # [B]
    order_ptr,  # [B] which request comes when, if ORDERED
    scale,  # of the scores, times log2(e)
    window,
    table_row,
    Q_ROW: tl.constexpr,  # strides
    Q_HEAD: tl.constexpr,
    PAGE_STRIDE: tl.constexpr,
    TOKEN_STRIDE: tl.constexpr,
    HEAD_STRIDE: tl.constexpr,
    GROUP: tl.constexpr,  # query heads of a key/value head
    BLOCKS: tl.constexpr,  # tiles that these are cut into
    ROWS: tl.constexpr,  # of such a tile
    D: tl.constexpr,
    DP: tl.constexpr,
    PAGE: tl.constexpr,
    SPLITS: tl.constexpr,
    TILE: tl.constexpr,
    LEAST: tl.constexpr,
    STAGES: tl.constexpr,
    KIND: tl.constexpr,  # type of the products
    WINDOWED: tl.constexpr,
    ORDERED: tl.constexpr,
    launch_pdl: tl.constexpr,
):
    """Grid (KV * BLOCKS, SPLITS, B). Heads run fastest: they lie side by side in the cache."""
    if launch_pdl:
        gdc_launch_dependents()
    block = tl.program_id(0)
    split = tl.program_id(1)
    b = tl.program_id(2)
    if ORDERED:
        if launch_pdl:
            gdc_wait()
        b = tl.load(order_ptr + b)
    context = tl.load(context_ptr + b)
    start = 0
    if WINDOWED:
        start = tl.maximum(context - window, 0)
    first, stop, live = share(start, context, split, SPLITS, LEAST, TILE)
    if SPLITS > 1:  # noqa: SIM102 (known when compiling, the other is not)
        if split >= tl.maximum(live, 1):
            return
    if launch_pdl and not ORDERED:
        gdc_wait()

    head = block // BLOCKS
    g = (block % BLOCKS) * ROWS + tl.arange(0, ROWS)
    real = g < GROUP
    d = tl.arange(0, DP)
    q = tl.load(
        q_ptr + b.to(tl.int64) * Q_ROW + (head * GROUP + g)[:, None] * Q_HEAD + d[None, :],
        mask=real[:, None] & (d < D)[None, :],
        other=0.0,
    ).to(KIND)
    peak, total, acc = walk(
        q,
        k_ptr + head * HEAD_STRIDE,
        v_ptr + head * HEAD_STRIDE,
        table_ptr + b * table_row,
        first,
        stop,
        start,
        scale,
        tl.full([ROWS], -float("inf"), tl.float32),
        tl.zeros([ROWS], tl.float32),
        tl.zeros([ROWS, DP], tl.float32),
        PAGE_STRIDE,
        TOKEN_STRIDE,
        D,
        DP,
        PAGE,
        TILE,
        STAGES,
        WINDOWED,
    )
    heads = tl.num_programs(0)
    settle(
        acc,
        peak,
        total,
        out_ptr + (b.to(tl.int64) * (heads // BLOCKS) + head) * GROUP * D,
        parts_ptr,
        peaks_ptr,
        totals_ptr,
        arrivals_ptr,
        b * heads + block,
        split,
        live,
        g,
        real,
        D,
        DP,
        ROWS,
        SPLITS,
    )
