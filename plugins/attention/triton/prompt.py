"""Attention of requests that bring any number of query tokens, over the paged cache.

FlashAttention-2 (Dao 2023) over pages: a program takes a tile of query tokens of one request, with
as many of the query heads that share a key/value head as are a power of two, and walks through the
tokens that the tile sees. Only tiles of keys at the edges of what is seen are masked.
"""

from __future__ import annotations

import triton
import triton.language as tl

from plugins.attention.triton.decode import INDEXES
from plugins.attention.triton.tiles import absorb, load_keys, load_values, token_offsets


@triton.jit
def owner(start_ptr, tile, low, requests, TOKENS: tl.constexpr):
    """The request in [low, requests) that a tile of query tokens belongs to.

    Request r's tiles begin at number (its first token - the first of all) // TOKENS + r - low: that
    leaves each request as many as it needs, or one more, and needs no table made on the host.
    """
    base = low
    origin = tl.load(start_ptr + base)
    high = requests
    while high - low > 1:
        middle = (low + high) // 2
        begin = (tl.load(start_ptr + middle) - origin) // TOKENS + middle - base
        if begin <= tile:
            low = middle
        else:
            high = middle
    return low, (tl.load(start_ptr + low) - origin) // TOKENS + low - base


@triton.jit
def advance(
    q,
    keys,
    values,
    table,
    first,
    stop,
    end,
    position,
    scale,
    window,
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
    MASKED: tl.constexpr,
):
    """Absorb the tiles [first, stop) of tokens before `end`; not MASKED: every query sees them."""
    n = tl.arange(0, TILE)
    for at in tl.range(first, stop, TILE, num_stages=STAGES):
        token = at + n
        there = token < end
        offsets = token_offsets(table, at, end, there, page_stride, token_stride, PAGE, TILE)
        k = load_keys(keys, offsets, there, D, DP, MASKED).to(q.dtype)
        v = load_values(values, offsets, there, D, DP, MASKED).to(q.dtype)
        seen = there[None, :] & (token[None, :] <= position[:, None])
        if WINDOWED:
            seen = seen & (token[None, :] > position[:, None] - window)
        peak, total, acc = absorb(q, k, v, seen, scale, peak, total, acc, MASKED)
    return peak, total, acc


@triton.jit(do_not_specialize=INDEXES)
def prompt(
    q_ptr,  # [T, H, D]
    k_ptr,  # [pages, page_size, KV, D]
    v_ptr,
    out_ptr,  # [T, H, D]
    table_ptr,  # [B, P]
    start_ptr,  # [B + 1] first query token of each request
    context_ptr,  # [B]
    scale,  # of the scores, times log2(e)
    window,
    low,  # requests [low, requests) are computed
    requests,
    table_row,
    Q_ROW: tl.constexpr,  # strides
    Q_HEAD: tl.constexpr,
    PAGE_STRIDE: tl.constexpr,
    TOKEN_STRIDE: tl.constexpr,
    HEAD_STRIDE: tl.constexpr,
    GROUP: tl.constexpr,  # query heads of a key/value head
    PACK: tl.constexpr,  # of which so many are in one tile
    D: tl.constexpr,
    DP: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,  # rows of the tile: PACK heads of ROWS // PACK tokens
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    KIND: tl.constexpr,  # type of the products
    WINDOWED: tl.constexpr,
):
    """Grid (H // PACK, tiles): the last tiles, which see the most, come first."""
    TOKENS: tl.constexpr = ROWS // PACK
    h = tl.program_id(0) * PACK
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    b, begin = owner(start_ptr, tile, low, requests, TOKENS)
    query = tl.load(start_ptr + b)
    count = tl.load(start_ptr + b + 1) - query
    skip = (tile - begin) * TOKENS
    if skip >= count:
        return

    context = tl.load(context_ptr + b)
    r = tl.arange(0, ROWS)
    d = tl.arange(0, DP)
    token = skip + r // PACK
    mask = (token < count)[:, None] & (d < D)[None, :]
    rows = (query + token).to(tl.int64)
    q = tl.load(
        q_ptr + (rows * Q_ROW + (h + r % PACK) * Q_HEAD)[:, None] + d[None, :], mask=mask, other=0.0
    ).to(KIND)
    head = h // GROUP
    keys = k_ptr + head * HEAD_STRIDE
    values = v_ptr + head * HEAD_STRIDE
    table = table_ptr + b * table_row
    position = context - count + token
    nearest = context - count + skip  # position of the tile's first token
    end = tl.maximum(tl.minimum(nearest + TOKENS, context), 0)
    first = 0
    inner = 0  # tiles in [inner, edge) are seen by every query
    if WINDOWED:
        first = tl.maximum(nearest - window + 1, 0) // TILE * TILE
        inner = tl.minimum(tl.cdiv(tl.maximum(end - window, 0), TILE) * TILE, end)
    edge = tl.maximum(tl.minimum(tl.maximum(nearest + 1, 0) // TILE * TILE, end), inner)
    peak = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DP], tl.float32)
    if WINDOWED:
        peak, total, acc = advance(
            q, keys, values, table, first, inner, end, position, scale, window, peak, total, acc,
            PAGE_STRIDE, TOKEN_STRIDE, D, DP, PAGE, TILE, STAGES, WINDOWED, True,
        )  # fmt: skip
    peak, total, acc = advance(
        q, keys, values, table, inner, edge, end, position, scale, window, peak, total, acc,
        PAGE_STRIDE, TOKEN_STRIDE, D, DP, PAGE, TILE, STAGES, WINDOWED, False,
    )  # fmt: skip
    peak, total, acc = advance(
        q, keys, values, table, edge, end, end, position, scale, window, peak, total, acc,
        PAGE_STRIDE, TOKEN_STRIDE, D, DP, PAGE, TILE, STAGES, WINDOWED, True,
    )  # fmt: skip
    heads = tl.num_programs(0) * PACK
    tl.store(
        out_ptr + ((rows * heads + h + r % PACK) * D)[:, None] + d[None, :],
        acc / tl.where(total == 0.0, 1.0, total)[:, None],
        mask=mask,
    )
