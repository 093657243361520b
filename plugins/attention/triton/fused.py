"""All that lies between two projections of a step of single tokens, in one kernel.

Norm and rotation of queries and key, the store of key and value, and attention: `rope_store` and
`decode` in one. The program of the first split makes the new key and starts its softmax from the
new token in registers, so the loop reads only older tokens: nothing that this launch writes.

With PDL the kernel starts while its predecessor, the projection, still runs. Until `gdc_wait` it
reads what was complete long before: lengths, page table, gains, angles and, with AHEAD, the first
tile of older keys and values, which hides their way from memory.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from plugins.attention.triton.decode import INDEXES, walk
from plugins.attention.triton.tiles import (
    absorb,
    load_keys,
    load_values,
    settle,
    share,
    token_offsets,
)


@triton.jit
def turned(
    at,
    gain,
    gain_of_other,
    other,
    cos,
    sin,
    eps,
    real,
    D: tl.constexpr,
    DP: tl.constexpr,
    NORMED: tl.constexpr,
):
    """Heads at addresses [R, 1], normed and turned: float32 [R, DP].

    Entry d turns together with entry other[d], which is loaded a second time instead of being
    moved between threads.
    """
    d = tl.arange(0, DP)
    mask = real[:, None] & (d < D)[None, :]
    x = tl.load(at + d[None, :], mask=mask, other=0.0).to(tl.float32)
    y = tl.load(at + other[None, :], mask=mask, other=0.0).to(tl.float32)
    if NORMED:
        scale = tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None]
        x = x * scale * gain[None, :]
        y = y * scale * gain_of_other[None, :]
    return x * cos[None, :] + y * sin[None, :]


@triton.jit
def angles(rope, position, TURNS: tl.constexpr, DP: tl.constexpr):
    """(partner of each entry, cosines, signed sines), each [DP].

    The first 2 TURNS entries of a head turn, the halves of them paired; the others stay.
    """
    d = tl.arange(0, DP)
    turns = d < 2 * TURNS
    at = rope + position * (2 * TURNS) + d % TURNS
    cos = tl.load(at, mask=turns, other=1.0)
    sin = tl.load(at + TURNS, mask=turns, other=0.0)
    other = tl.where(turns, (d + TURNS) % (2 * TURNS), d)
    return other, cos, tl.where(d < TURNS, -sin, sin)


@triton.jit(do_not_specialize=INDEXES)
def fused(
    qkv_ptr,  # [B, H + 2 KV, D]
    k_ptr,  # [pages, page_size, KV, D]
    v_ptr,
    rope_ptr,  # [positions, 2, TURNS]
    q_gain_ptr,  # [D], if NORMED
    k_gain_ptr,
    out_ptr,  # [B, H, D]
    parts_ptr,  # [groups, S, R, DP]
    peaks_ptr,  # [groups, S, R]
    totals_ptr,
    arrivals_ptr,  # [groups]
    table_ptr,  # [B, P]
    context_ptr,  # [B]
    position_ptr,  # [B]
    slot_ptr,  # [B]
    order_ptr,  # [B] which request comes when, if ORDERED
    scale,  # of the scores, times log2(e)
    eps,
    window,
    table_row,
    QKV_ROW: tl.constexpr,  # strides
    PAGE_STRIDE: tl.constexpr,
    TOKEN_STRIDE: tl.constexpr,
    HEAD_STRIDE: tl.constexpr,
    KV: tl.constexpr,
    GROUP: tl.constexpr,  # query heads of a key/value head
    BLOCKS: tl.constexpr,  # tiles that these are cut into
    ROWS: tl.constexpr,  # of such a tile
    D: tl.constexpr,
    DP: tl.constexpr,
    TURNS: tl.constexpr,
    PAGE: tl.constexpr,
    SPLITS: tl.constexpr,
    TILE: tl.constexpr,
    LEAST: tl.constexpr,
    STAGES: tl.constexpr,
    KIND: tl.constexpr,  # type of the products
    WINDOWED: tl.constexpr,
    NORMED: tl.constexpr,
    ORDERED: tl.constexpr,
    AHEAD: tl.constexpr,
    launch_pdl: tl.constexpr,
):
    """Grid (KV * BLOCKS, SPLITS, B)."""
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
    older = tl.maximum(context - 1, 0)
    start = 0
    if WINDOWED:
        start = tl.minimum(tl.maximum(context - window, 0), older)
    first, stop, live = share(start, older, split, SPLITS, LEAST, TILE)
    live = tl.maximum(live, 1)
    if SPLITS > 1:  # noqa: SIM102 (known when compiling, the other is not)
        if split >= live:
            return

    head = block // BLOCKS
    g = (block % BLOCKS) * ROWS + tl.arange(0, ROWS)
    real = g < GROUP
    d = tl.arange(0, DP)
    inside = d < D
    keys = k_ptr + head * HEAD_STRIDE
    values = v_ptr + head * HEAD_STRIDE
    table = table_ptr + b * table_row
    position = tl.where(context > 0, tl.load(position_ptr + b), 0)
    slot = tl.load(slot_ptr + b)
    other, cos, sin = angles(rope_ptr, position, TURNS, DP)
    q_gain = cos
    q_gain_of_other = cos
    k_gain = cos
    k_gain_of_other = cos
    if NORMED:
        q_gain = tl.load(q_gain_ptr + d, mask=inside, other=0.0).to(tl.float32)
        q_gain_of_other = tl.load(q_gain_ptr + other, mask=inside, other=0.0).to(tl.float32)
        k_gain = tl.load(k_gain_ptr + d, mask=inside, other=0.0).to(tl.float32)
        k_gain_of_other = tl.load(k_gain_ptr + other, mask=inside, other=0.0).to(tl.float32)
    if AHEAD:
        at = first + tl.arange(0, TILE)
        seen = at < stop
        if WINDOWED:
            seen = seen & (at >= start)
        offsets = token_offsets(table, first, stop, seen, PAGE_STRIDE, TOKEN_STRIDE, PAGE, TILE)
        k_ahead = load_keys(keys, offsets, seen, D, DP, True)
        v_ahead = load_values(values, offsets, seen, D, DP, True)
    if launch_pdl and not ORDERED:
        gdc_wait()

    row = qkv_ptr + b.to(tl.int64) * QKV_ROW
    q = turned(
        row + ((head * GROUP + g) * D)[:, None],
        q_gain, q_gain_of_other, other, cos, sin, eps, real, D, DP, NORMED,
    ).to(KIND)  # fmt: skip
    peak = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DP], tl.float32)
    if (split == 0) & (context > 0):
        one = tl.arange(0, 1)
        k = turned(
            row + ((KV * GROUP + head + one) * D)[:, None],
            k_gain, k_gain_of_other, other, cos, sin, eps, one == 0, D, DP, NORMED,
        ).to(k_ptr.dtype.element_ty)  # fmt: skip
        v = tl.load(row + (KV * GROUP + KV + head) * D + d, mask=inside, other=0.0)
        v = v.to(v_ptr.dtype.element_ty)
        if (slot >= 0) & (block % BLOCKS == 0):
            where = (slot // PAGE) * PAGE_STRIDE + (slot % PAGE) * TOKEN_STRIDE
            tl.store(keys + where + one[:, None] + d[None, :], k, mask=inside[None, :])
            tl.store(values + where + d, v, mask=inside)
        scores = tl.sum(q.to(tl.float32) * k.to(KIND).to(tl.float32), 1)
        peak = scores * scale
        total = total + 1.0
        acc = acc + v.to(KIND).to(tl.float32)[None, :]
    if AHEAD:
        k_ahead = k_ahead.to(KIND)
        v_ahead = v_ahead.to(KIND)
        peak, total, acc = absorb(q, k_ahead, v_ahead, seen[None, :], scale, peak, total, acc, True)
        first += TILE
    peak, total, acc = walk(
        q, keys, values, table, first, stop, start, scale, peak, total, acc,
        PAGE_STRIDE, TOKEN_STRIDE, D, DP, PAGE, TILE, STAGES, WINDOWED,
    )  # fmt: skip
    settle(
        acc,
        peak,
        total,
        out_ptr + (b.to(tl.int64) * KV + head) * GROUP * D,
        parts_ptr,
        peaks_ptr,
        totals_ptr,
        arrivals_ptr,
        (b * KV + head) * BLOCKS + block % BLOCKS,
        split,
        live,
        g,
        real,
        D,
        DP,
        ROWS,
        SPLITS,
    )
