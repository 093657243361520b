"""Products of up to 256 tokens by Hopper's bulk copies: tiles come to shared memory by the copy
engine (TMA), and its matrix units (wgmma) take both operands from there.

One thread asks for a whole tile, so the others need no registers for addresses, and what lies past
the last row or column arrives as zeros. The matrix units take 64 rows at once on one side and any
multiple of eight on the other. With SWAP the 64 are rows of the weight, of which there are always
enough, and the tokens are the other side.

As in `loop`, copies start after the wait for the predecessor (PDL). With EARLY a program asks the
second-level cache for the first blocks of its share of the weight before.

Every program reads all of its tokens, from the second-level cache: Triton 3.6 has no word for a
copy to several multiprocessors at once. With 64 tokens and tiles of 128 rows that is half as much
as the weight, with 256 tokens twice as much. So tiles should have many rows, and a weight that has
few is split along its columns.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from plugins.kernels.triton.products.ends import early_squares, prefetch, settle

LINE = tl.constexpr(64)  # elements of two bytes in a line of the cache


@triton.jit(do_not_specialize=["tokens", "parts", "eps"])
def bulk(
    weight,  # these as in `once`
    bias,
    squares,
    gain,
    out,
    carried,
    out_squares,
    partial,
    arrivals,
    x_tiles,  # descriptor of x [tokens, K] in tiles [BM, BK]
    w_tiles,  # descriptor of the weight [N or 2 N, K] in tiles [BN, BK]
    eps,
    tokens,
    parts,
    N: tl.constexpr,
    K: tl.constexpr,
    W_STRIDE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    S: tl.constexpr,
    STAGES: tl.constexpr,  # of the pipeline
    EARLY: tl.constexpr,  # blocks of the weight that are asked for before the wait
    SWAP: tl.constexpr,
    PARTS: tl.constexpr,
    BIAS: tl.constexpr,
    SCALE: tl.constexpr,
    SILU: tl.constexpr,
    ADD: tl.constexpr,
    launch_pdl: tl.constexpr,
):
    """Grid (N / BN, S, tokens / BM)."""
    if launch_pdl:
        gdc_launch_dependents()
    BLOCKS: tl.constexpr = (K + S * BK - 1) // (S * BK)
    first = tl.program_id(0) * BN
    top = tl.program_id(2) * BM
    start = tl.program_id(1) * (BLOCKS * BK)
    n = first + tl.arange(0, BN)
    m = top + tl.arange(0, BM)
    live = m < tokens
    if launch_pdl:
        row = tl.minimum(n, N - 1).to(tl.int64)[:, None] * W_STRIDE
        for k in tl.static_range(EARLY):
            line = tl.minimum(start + k * BK + tl.arange(0, BK // LINE) * LINE, K - 1)
            mine = weight + row + line[None, :]
            prefetch(mine.to(tl.int64))
            if SILU:
                prefetch((mine + N * W_STRIDE).to(tl.int64))
        gdc_wait()
    squared = early_squares(squares, m, live, parts, BM, PARTS, SCALE)
    if SWAP:
        acc = tl.zeros([BN, BM], tl.float32)
    else:
        acc = tl.zeros([BM, BN], tl.float32)
    up = acc
    for k in tl.range(start, start + BLOCKS * BK, BK, num_stages=STAGES):
        x = x_tiles.load([top, k])
        w = w_tiles.load([first, k])
        if SWAP:
            acc = tl.dot(w, x.T, acc, input_precision="ieee")
        else:
            acc = tl.dot(x, w.T, acc, input_precision="ieee")
        if SILU:
            w = w_tiles.load([N + first, k])
            if SWAP:
                up = tl.dot(w, x.T, up, input_precision="ieee")
            else:
                up = tl.dot(x, w.T, up, input_precision="ieee")
    if SWAP:
        acc = tl.trans(acc)
        up = tl.trans(up)
    settle(
        acc, up, squared, squares, bias, gain, out, carried, out_squares, partial, arrivals,
        m, n, live, tokens, eps, parts, N, K, BM, BN, S, PARTS, BIAS, SCALE, SILU, ADD,
    )  # fmt: skip
