"""What the attention kernels have in common: reading a tile of the cache, softmax, joining splits.

Letters in shapes: N tokens of a tile, R rows of queries (the query heads that share a key/value
head, or those of several tokens), DP the head size rounded up to a power of two, S splits.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def token_offsets(
    table, first, stop, seen, page_stride, token_stride, PAGE: tl.constexpr, TILE: tl.constexpr
):
    """Where tokens first, first + 1, ... [N] of a request lie in the cache, in elements.

    `table` points to the request's row of the page table. Only tokens before `stop`, and those
    that are `seen`, have a page; the offsets of others mean nothing.
    """
    n = tl.arange(0, TILE)
    if PAGE % TILE == 0:  # a tile lies in one page, since `first` is a multiple of TILE
        page = tl.load(table + first // PAGE, mask=first < stop, other=0).to(tl.int64)
        return page * page_stride + (first % PAGE + n) * token_stride
    else:
        token = first + n
        pages = tl.load(table + token // PAGE, mask=seen, other=0).to(tl.int64)
        return pages * page_stride + (token % PAGE) * token_stride


@triton.jit
def load_keys(keys, offsets, seen, D: tl.constexpr, DP: tl.constexpr, MASKED: tl.constexpr):
    """Keys at offsets [N] -> [DP, N]; zeros where unseen, and behind the end of a head."""
    d = tl.arange(0, DP)
    at = keys + offsets[None, :] + d[:, None]
    if DP != D:
        return tl.load(at, mask=seen[None, :] & (d < D)[:, None], other=0.0)
    elif MASKED:
        return tl.load(at, mask=seen[None, :], other=0.0)
    else:
        return tl.load(at)


@triton.jit
def load_values(values, offsets, seen, D: tl.constexpr, DP: tl.constexpr, MASKED: tl.constexpr):
    """Values at offsets [N] -> [N, DP]. Zeros where unseen: a weight of 0 times NaN is NaN."""
    d = tl.arange(0, DP)
    at = values + offsets[:, None] + d[None, :]
    if DP != D:
        return tl.load(at, mask=seen[:, None] & (d < D)[None, :], other=0.0)
    elif MASKED:
        return tl.load(at, mask=seen[:, None], other=0.0)
    else:
        return tl.load(at)


@triton.jit
def absorb(q, k, v, seen, scale, peak, total, acc, MASKED: tl.constexpr):
    """Softmax over one more tile of tokens (Milakov and Gimelshein 2018), in powers of two.

    q [R, DP], k [DP, N], v [N, DP]; seen: which scores count, broadcast to [R, N], if MASKED.
    peak [R], the largest scaled score so far; total [R] and acc [R, DP], sums of weights and of
    weighted values, both relative to the peak. `scale` is positive.
    """
    scores = tl.dot(q, k, input_precision="ieee")
    if MASKED:
        scores = tl.where(seen, scores, -float("inf"))
    higher = tl.maximum(peak, tl.max(scores, 1) * scale)
    anchor = higher
    if MASKED:  # a row that has seen nothing yet: -inf minus -inf is NaN
        anchor = tl.where(higher == -float("inf"), 0.0, higher)
    weights = tl.exp2(scores * scale - anchor[:, None])
    shrink = tl.exp2(peak - anchor)
    total = total * shrink + tl.sum(weights, 1)
    acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
    return higher, total, acc


@triton.jit
def share(start, stop, split, SPLITS: tl.constexpr, LEAST: tl.constexpr, TILE: tl.constexpr):
    """The tokens of one split of [start, stop): (first, stop, number of splits that have some).

    Splits begin at multiples of TILE and hold LEAST tokens, or a multiple, but for the last.
    """
    begin = start // TILE * TILE
    length = stop - begin
    each = tl.maximum(tl.cdiv(tl.cdiv(length, SPLITS), LEAST), 1) * LEAST
    first = begin + split * each
    return first, tl.minimum(first + each, stop), tl.cdiv(length, each)


@triton.jit
def settle(
    acc,
    peak,
    total,
    out,
    parts,
    peaks,
    totals,
    arrivals,
    group,
    split,
    live,
    g,
    real,
    D: tl.constexpr,
    DP: tl.constexpr,
    ROWS: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Write the result of one split, or leave it for the split that arrives last to join all.

    `out` points to the output of the first row's head. The parts of a `group` of rows [R] are
    added in the order of the splits, whichever arrives last, so the sum is always the same.
    """
    d = tl.arange(0, DP)
    where = out + g[:, None] * D + d[None, :]
    mask = real[:, None] & (d < D)[None, :]
    if SPLITS == 1:
        tl.store(where, acc / _or_one(total)[:, None], mask=mask)
    else:
        if live <= 1:
            tl.store(where, acc / _or_one(total)[:, None], mask=mask)
        else:
            row = tl.arange(0, ROWS)
            part = (group * SPLITS + split) * ROWS + row
            tl.store(parts + part[:, None] * DP + d[None, :], acc)
            tl.store(peaks + part, peak)
            tl.store(totals + part, total)
            tl.debug_barrier()  # the stores of all threads come before the releasing add of one
            before = tl.atomic_add(arrivals + group, 1, sem="acq_rel")
            if before == live - 1:
                whole, acc = join(parts, peaks, totals, group, live, DP, ROWS, SPLITS)
                tl.store(where, acc / _or_one(whole)[:, None], mask=mask)
                tl.store(arrivals + group, 0)


@triton.jit
def join(
    parts,
    peaks,
    totals,
    group,
    live,
    DP: tl.constexpr,
    ROWS: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Sums of weights [R] and of weighted values [R, DP] over the live splits of a group.

    Reads past the first-level cache (.cg), which may hold what was there before.
    """
    FREE: tl.constexpr = 8192 // (ROWS * DP)  # as many parts at once as registers hold
    MOST: tl.constexpr = 8 if FREE > 8 else FREE
    CHUNK: tl.constexpr = MOST if MOST < SPLITS else SPLITS
    row = tl.arange(0, ROWS)
    s = tl.arange(0, SPLITS)
    alive = (s < live)[:, None]
    at = (group * SPLITS + s)[:, None] * ROWS + row[None, :]
    highs = tl.load(peaks + at, mask=alive, other=-float("inf"), cache_modifier=".cg")
    sums = tl.load(totals + at, mask=alive, other=0.0, cache_modifier=".cg")
    anchor = tl.max(highs, 0)
    anchor = tl.where(anchor == -float("inf"), 0.0, anchor)
    whole = tl.sum(sums * tl.exp2(highs - anchor[None, :]), 0)
    acc = tl.zeros([ROWS, DP], tl.float32)
    d = tl.arange(0, DP)
    for begin in range(0, live, CHUNK):
        some = begin + tl.arange(0, CHUNK)
        there = (some < live)[:, None]
        where = (group * SPLITS + some)[:, None] * ROWS + row[None, :]
        high = tl.load(peaks + where, mask=there, other=-float("inf"), cache_modifier=".cg")
        weight = tl.exp2(high - anchor[None, :])
        part = tl.load(
            parts + where[:, :, None] * DP + d[None, None, :],
            mask=there[:, :, None],
            other=0.0,
            cache_modifier=".cg",
        )
        acc += tl.sum(part * weight[:, :, None], 0)
    return whole, acc


@triton.jit
def _or_one(total):
    """`total`, and 1 where nothing was summed, whose quotient shall be 0."""
    return tl.where(total == 0.0, 1.0, total)
