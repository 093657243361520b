"""The sum over ranks, the residual and the norm behind them, in one kernel."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from plugins.kernels.triton.sums.words import place, send, to_words, total


@triton.jit(do_not_specialize=["eps"])
def sum_add_norm(
    x,  # [rows, N]: this rank's part of the sums
    residual,  # [rows, N]: read and written
    gain,  # [N], the norm's weight
    out,  # [rows, N]: the norm; if CARRY, the sum times the weight; may be x
    squares,  # [rows] float32, if CARRY
    addresses,  # [RANKS] int64: every rank's memory
    turns,  # [blocks] int32
    stop,
    eps,
    N: tl.constexpr,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    AREA: tl.constexpr,
    BLOCK: tl.constexpr,  # power of two, at least N
    CARRY: tl.constexpr,  # the product behind it scales by the norm (`products.carried`)
    launch_pdl: tl.constexpr,
):
    """Grid (rows,). While words are on their way, the next kernel asks for its weights."""
    if launch_pdl:
        gdc_launch_dependents()
    column = tl.arange(0, BLOCK)
    here = column < N
    factor = tl.load(gain + column, mask=here, other=0.0).to(tl.float32)
    if launch_pdl:
        gdc_wait()
    block = tl.program_id(0)
    turn = tl.load(turns + block)
    row = block.to(tl.int64) * N
    value = tl.load(x + row + column, mask=here, other=0.0)
    words = to_words(value)
    for r in tl.static_range(RANKS):
        if r != RANK:
            send(words, place(addresses, r, block, turn, RANK, RANKS, AREA), column, here)
    old = tl.load(residual + row + column, mask=here, other=0.0).to(tl.float32)
    acc = total(value, words, addresses, block, turn, column, here, stop, RANK, RANKS, AREA)
    # The sum over ranks is rounded as an all-reduce apart would round it, and so is the residual.
    acc = acc.to(value.dtype).to(tl.float32) + old
    rounded = acc.to(value.dtype)
    tl.store(residual + row + column, rounded, mask=here)
    acc = rounded.to(tl.float32)
    squared = tl.sum(acc * acc, 0)
    if CARRY:
        tl.store(out + row + column, acc * factor, mask=here)
        tl.store(squares + block, squared)
    else:
        scale = tl.rsqrt(squared / N + eps)
        tl.store(out + row + column, acc * scale * factor, mask=here)
    tl.store(turns + block, turn + 1)
