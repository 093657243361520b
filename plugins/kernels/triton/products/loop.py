"""Products by the matrix units with a pipelined loop over the columns: for large weights, or up to
64 tokens.

The compiler's pipeline starts after the wait for the predecessor (PDL), however early the code
asks. With OWN a program asks the second-level cache for its share of the weight before, which pays
where the weight is small.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from plugins.kernels.triton.products.ends import early_squares, prefetch, settle

LINE = tl.constexpr(64)  # elements of two bytes in a line of the cache


@triton.jit(do_not_specialize=["tokens", "parts", "eps"])
def loop(
    x,  # these as in `once`
    weight,
    bias,
    squares,
    gain,
    out,
    carried,
    out_squares,
    partial,
    arrivals,
    eps,
    tokens,
    parts,
    N: tl.constexpr,
    K: tl.constexpr,
    X_STRIDE: tl.constexpr,
    W_STRIDE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    S: tl.constexpr,
    STAGES: tl.constexpr,  # of the pipeline
    OWN: tl.constexpr,
    PARTS: tl.constexpr,
    BIAS: tl.constexpr,
    SCALE: tl.constexpr,
    SILU: tl.constexpr,
    ADD: tl.constexpr,
    launch_pdl: tl.constexpr,
):
    """Grid (N / BN, S)."""
    if launch_pdl:
        gdc_launch_dependents()
    BLOCKS: tl.constexpr = (K + S * BK - 1) // (S * BK)
    EVEN: tl.constexpr = K % (S * BK) == 0
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m = tl.arange(0, BM)
    start = tl.program_id(1) * (BLOCKS * BK)
    c = start + tl.arange(0, BK)
    live = m < tokens
    row = n
    if N % BN != 0:
        row = tl.minimum(n, N - 1)
    if launch_pdl and OWN:
        for k in tl.static_range(BLOCKS):
            line = tl.minimum(start + k * BK + tl.arange(0, BK // LINE) * LINE, K - 1)
            mine = weight + row.to(tl.int64)[:, None] * W_STRIDE + line[None, :]
            prefetch(mine.to(tl.int64))
            if SILU:
                prefetch((mine + N * W_STRIDE).to(tl.int64))
    if launch_pdl:
        gdc_wait()
    squared = early_squares(squares, m, live, parts, BM, PARTS, SCALE)
    w_at = weight + row.to(tl.int64)[None, :] * W_STRIDE + c[:, None]
    up_at = w_at + N * W_STRIDE
    x_at = x + m[:, None] * X_STRIDE + c[None, :]
    acc = tl.zeros([BM, BN], tl.float32)
    up = tl.zeros([BM, BN], tl.float32)
    for k in tl.range(0, BLOCKS * BK, BK, num_stages=STAGES):
        if EVEN:
            x_k = tl.load(x_at + k, mask=live[:, None], other=0.0)
            acc = tl.dot(x_k, tl.load(w_at + k), acc, input_precision="ieee")
            if SILU:
                up = tl.dot(x_k, tl.load(up_at + k), up, input_precision="ieee")
        else:
            here = c + k < K
            x_k = tl.load(x_at + k, mask=live[:, None] & here[None, :], other=0.0)
            w = tl.load(w_at + k, mask=here[:, None], other=0.0)
            acc = tl.dot(x_k, w, acc, input_precision="ieee")
            if SILU:
                w = tl.load(up_at + k, mask=here[:, None], other=0.0)
                up = tl.dot(x_k, w, up, input_precision="ieee")
    settle(
        acc, up, squared, squares, bias, gain, out, carried, out_squares, partial, arrivals,
        m, n, live, tokens, eps, parts, N, K, BM, BN, S, PARTS, BIAS, SCALE, SILU, ADD,
    )  # fmt: skip
