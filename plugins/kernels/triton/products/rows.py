"""Products of one or two tokens without the matrix units: every warp adds up rows of the weight.

At these sizes a product is as fast as its weight comes from memory, and the next kernels' weights
should be on their way meanwhile. So a program asks for the first blocks of all of its rows before
it waits for its predecessor (PDL), and holds them in registers.

Tiles have the dimensions (warp, token, column). With the warps outermost, all of them lie in the
registers in one way from their load on: a warp has whole rows, a thread has 16 bytes of one, and
sums are taken by shuffles alone.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

BLOCK = tl.constexpr(256)  # columns that a warp reads at once: 16 bytes a thread
HELD = tl.constexpr(12)  # blocks of x that a thread can hold beside its weights


@triton.jit
def _block(at, column, k: tl.constexpr, K: tl.constexpr):
    """Block k of the rows at `at`; past the last column there are zeros."""
    if (k + 1) * BLOCK <= K:
        return tl.load(at + k * BLOCK)
    else:
        return tl.load(at + k * BLOCK, mask=column < K - k * BLOCK, other=0.0)


@triton.jit
def _tokens(at, token, column, k: tl.constexpr, M: tl.constexpr, MB: tl.constexpr, K: tl.constexpr):
    """The same of x, whose tokens may be fewer than the tile's."""
    if M == MB:
        return _block(at, column, k, K)
    else:
        return tl.load(at + k * BLOCK, mask=(column < K - k * BLOCK) & (token < M), other=0.0)


@triton.jit
def _more(sums, weight, x, W: tl.constexpr, MB: tl.constexpr):
    """Partial sums of a block's products; a thread adds up the eight that it has loaded itself."""
    return sums + tl.sum(tl.reshape(weight.to(tl.float32) * x, [W, MB, BLOCK // 8, 8]), 3)


@triton.jit
def _side_by_side(x, EACH: tl.constexpr):
    """1, 2 or 4 tiles [W, MB], summed over their last dimension -> [W, MB, EACH]."""
    if EACH == 1:
        return tl.sum(x[0], 2)[:, :, None]
    elif EACH == 2:
        return tl.join(tl.sum(x[0], 2), tl.sum(x[1], 2))
    else:
        even = tl.join(tl.sum(x[0], 2), tl.sum(x[2], 2))
        odd = tl.join(tl.sum(x[1], 2), tl.sum(x[3], 2))
        return tl.reshape(tl.join(even, odd), [even.shape[0], even.shape[1], 4])


@triton.jit(do_not_specialize=["eps", "parts", "zero"])
def rows(
    x,  # [M, K]
    weight,  # [N or 2 N, K]
    bias,  # [N or 2 N], if BIAS
    squares,  # [M, parts] float32, if SCALE
    gain,  # [N], if ADD
    out,  # [M, N]; if ADD it holds the residual before
    carried,  # [M, N], if ADD: out * gain
    out_squares,  # [M, programs] float32, if ADD
    eps,
    parts,
    zero,  # 0. Known only when it runs: or x would be loaded once and exchanged, with barriers
    M: tl.constexpr,
    MB: tl.constexpr,  # power of two, at least M
    N: tl.constexpr,
    K: tl.constexpr,
    X_STRIDE: tl.constexpr,  # elements from row to row
    W_STRIDE: tl.constexpr,
    W: tl.constexpr,  # warps
    EACH: tl.constexpr,  # rows of the weight of a warp
    EAGER: tl.constexpr,  # blocks of each row that are asked for before the wait
    PARTS: tl.constexpr,  # power of two, at least `parts`
    BIAS: tl.constexpr,
    SCALE: tl.constexpr,  # x is carried: rows are to be scaled by their norm
    SILU: tl.constexpr,  # the weight has 2 N rows: silu(first half) * second half
    ADD: tl.constexpr,  # to the residual; and carry the norm that follows
    launch_pdl: tl.constexpr,
):
    """Grid (N / (W * EACH),)."""
    if launch_pdl:
        gdc_launch_dependents()
    BLOCKS: tl.constexpr = (K + BLOCK - 1) // BLOCK
    EVEN: tl.constexpr = N % (W * EACH) == 0
    program = tl.program_id(0)
    first = program * (W * EACH)
    warp = tl.arange(0, W)[:, None, None]
    token = tl.arange(0, MB)[None, :, None]
    column = tl.arange(0, BLOCK)[None, None, :]
    m = tl.arange(0, MB)
    n = first + warp * EACH + tl.arange(0, EACH)[None, None, :]  # [W, 1, EACH]
    there = (tl.arange(0, MB)[None, :, None] < M) & (n < N)
    place = n
    if not EVEN:
        place = tl.minimum(n, N - 1)
    at = ()
    up_at = ()
    for j in tl.static_range(EACH):
        row = first + warp * EACH + j
        if not EVEN:
            row = tl.minimum(row, N - 1)
        at = at + (weight + row.to(tl.int64) * W_STRIDE + column,)
        if SILU:
            up_at = up_at + (weight + (row.to(tl.int64) + N) * W_STRIDE + column,)
    if BIAS:
        shift = tl.load(bias + place).to(tl.float32)
        if SILU:
            up_shift = tl.load(bias + N + place).to(tl.float32)
    if ADD:
        factor = tl.load(gain + place).to(tl.float32)
    ws = ()
    ups = ()
    for k in tl.static_range(EAGER):
        for j in tl.static_range(EACH):
            ws = ws + (_block(at[j], column, k, K),)
            if SILU:
                ups = ups + (_block(up_at[j], column, k, K),)
    if launch_pdl:
        gdc_wait()

    x_at = x + token * X_STRIDE + warp * (zero * 16) + column
    xs = ()
    if MB * BLOCKS <= HELD:
        for k in tl.static_range(BLOCKS):
            xs = xs + (_tokens(x_at, token, column, k, M, MB, K),)
    if SCALE:  # asked for now, added up after the products: a barrier here would hold x back
        part = tl.arange(0, PARTS)[None, :]
        squared = tl.load(squares + m[:, None] * parts + part,
                          mask=(part < parts) & (m < M)[:, None], other=0.0)  # fmt: skip
    to = token * N + n
    if ADD:
        old = tl.load(out + to, mask=there, other=0.0).to(tl.float32)
    sums = ()
    up_sums = ()
    for _ in tl.static_range(EACH):
        sums = sums + (tl.zeros([W, MB, BLOCK // 8], tl.float32),)
        up_sums = up_sums + (tl.zeros([W, MB, BLOCK // 8], tl.float32),)
    for k in tl.static_range(BLOCKS):
        if MB * BLOCKS <= HELD:
            x_k = xs[k].to(tl.float32)
        else:
            x_k = _tokens(x_at, token, column, k, M, MB, K).to(tl.float32)
        for j in tl.static_range(EACH):
            if k < EAGER:
                w = ws[k * EACH + j]
            else:
                w = _block(at[j], column, k, K)
            sums = sums[:j] + (_more(sums[j], w, x_k, W, MB),) + sums[j + 1 :]
            if SILU:
                if k < EAGER:
                    up = ups[k * EACH + j]
                else:
                    up = _block(up_at[j], column, k, K)
                up_sums = up_sums[:j] + (_more(up_sums[j], up, x_k, W, MB),) + up_sums[j + 1 :]

    y = _side_by_side(sums, EACH)
    if SCALE:
        scale = tl.rsqrt(tl.sum(squared, 1) / K + eps)[None, :, None]
        y = y * scale
    if BIAS:
        y += shift
    if SILU:
        z = _side_by_side(up_sums, EACH)
        if SCALE:
            z = z * scale
        if BIAS:
            z += up_shift
        y = y * tl.sigmoid(y) * z
    if ADD:
        # What is normed is the sum as the next layers will read it: rounded.
        y = (y + old).to(out.dtype.element_ty).to(tl.float32)
        tl.store(carried + to, y * factor, mask=there)
        total = tl.sum(tl.sum(tl.where(there, y * y, 0.0), 2), 0)
        tl.store(out_squares + m * tl.num_programs(0) + program, total, mask=m < M)
    tl.store(out + to, y, mask=there)
