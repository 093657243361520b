"""Products of few tokens by the matrix units, without a loop, for small weights.

A program's whole share of the weight is in shared memory before it waits for its predecessor
(PDL): the compiler keeps loads outside of loops in their place, and stores to shared memory beside
them. After the wait come x, one barrier, and the products.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from plugins.kernels.triton.products.ends import early_squares, settle


@triton.jit(do_not_specialize=["tokens", "parts", "eps"])
def once(
    x,  # [tokens, K]
    weight,  # [N or 2 N, K]
    bias,  # [N or 2 N], if BIAS
    squares,  # [tokens, parts] float32, if SCALE
    gain,  # [N], if ADD
    out,  # [tokens, N]; if ADD it holds the residual before
    carried,  # [tokens, N], if ADD: out * gain
    out_squares,  # [tokens, tiles] float32, if ADD
    partial,  # room for splits
    arrivals,
    eps,
    tokens,
    parts,
    N: tl.constexpr,
    K: tl.constexpr,
    X_STRIDE: tl.constexpr,  # elements from row to row
    W_STRIDE: tl.constexpr,
    BM: tl.constexpr,  # at least `tokens`
    BN: tl.constexpr,
    BK: tl.constexpr,
    S: tl.constexpr,  # splits of the columns
    CHAINS: tl.constexpr,  # sums that do not wait for each other
    PARTS: tl.constexpr,  # power of two, at least `parts`
    BIAS: tl.constexpr,
    SCALE: tl.constexpr,
    SILU: tl.constexpr,
    ADD: tl.constexpr,
    launch_pdl: tl.constexpr,
):
    """Grid (N / BN, S). The flags are those of `rows`."""
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
    w_at = weight + row.to(tl.int64)[None, :] * W_STRIDE + c[:, None]
    up_at = w_at + N * W_STRIDE
    ws = ()
    ups = ()
    for k in tl.static_range(BLOCKS):
        if EVEN:
            ws = ws + (tl.load(w_at + k * BK),)
            if SILU:
                ups = ups + (tl.load(up_at + k * BK),)
        else:
            here = (c + k * BK < K)[:, None]
            ws = ws + (tl.load(w_at + k * BK, mask=here, other=0.0),)
            if SILU:
                ups = ups + (tl.load(up_at + k * BK, mask=here, other=0.0),)
    if launch_pdl:
        gdc_wait()
    squared = early_squares(squares, m, live, parts, BM, PARTS, SCALE)
    x_at = x + m[:, None] * X_STRIDE + c[None, :]
    xs = ()
    for k in tl.static_range(BLOCKS):
        here = live[:, None]
        if not EVEN:
            here = here & (c + k * BK < K)[None, :]
        xs = xs + (tl.load(x_at + k * BK, mask=here, other=0.0),)
    sums = ()
    up_sums = ()
    for k in tl.static_range(BLOCKS):
        if k < CHAINS:
            sums = sums + (tl.dot(xs[k], ws[k], input_precision="ieee"),)
            if SILU:
                up_sums = up_sums + (tl.dot(xs[k], ups[k], input_precision="ieee"),)
        else:
            more = tl.dot(xs[k], ws[k], sums[k % CHAINS], input_precision="ieee")
            sums = sums[: k % CHAINS] + (more,) + sums[k % CHAINS + 1 :]
            if SILU:
                more = tl.dot(xs[k], ups[k], up_sums[k % CHAINS], input_precision="ieee")
                up_sums = up_sums[: k % CHAINS] + (more,) + up_sums[k % CHAINS + 1 :]
    acc = sums[0]
    for i in tl.static_range(1, CHAINS):
        acc += sums[i]
    up = acc
    if SILU:
        up = up_sums[0]
        for i in tl.static_range(1, CHAINS):
            up += up_sums[i]
    settle(
        acc, up, squared, squares, bias, gain, out, carried, out_squares, partial, arrivals,
        m, n, live, tokens, eps, parts, N, K, BM, BN, S, PARTS, BIAS, SCALE, SILU, ADD,
    )  # fmt: skip
