"""The random numbers of `core.sampling.noise`, for kernels: the same bits, and logs that are fast.

The integers are equal bit for bit. Of the two logarithms, the card's fast one errs by up to 2^-22
(relative where its result is above 1), so noise differs by at most 6e-6 from exact arithmetic, and
mostly by 1e-6, which is what float32 resolves there. That changes a token only where two of them
tie so closely. All ranks that draw with these kernels compute the same.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from core.sampling import noise
from core.triton_launch import interpreted

INTERPRETED = tl.constexpr(interpreted())
LN2 = tl.constexpr(0.6931471805599453)
SCALE = tl.constexpr(noise.SCALE)


@triton.jit
def key(stream, position):
    """One word of a row's key at a position, uint32; stream: that of `core.sampling.columns`."""
    x = stream.to(tl.uint32, bitcast=True) ^ position.to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def bits(tokens, k0, k1):
    """31 uniform bits, int32, for token ids int32 and the two words of a key."""
    x = (tokens.to(tl.uint32, bitcast=True) ^ k0) * 0xED5AD4BB ^ k1
    x = (x ^ (x >> 15)) * 0xAC4C1B51
    x = (x ^ (x >> 15)) * 0x31848BAB
    word = x.to(tl.int32, bitcast=True)
    return word ^ (word >> 16)


@triton.jit
def gumbel(tokens, k0, k1):
    """Gumbel noise, float32: argmax(logits + gumbel) is a draw from softmax(logits)."""
    u = (bits(tokens, k0, k1).to(tl.float32) + 0.5) * SCALE
    # -log(1 - u). The largest noise, which wins, has the smallest u, where 1 - u would lose digits:
    # up to 1/4 a polynomial (minimax, 4e-8) of u stands for it.
    small = 0.14381852 + u * 0.33995219
    small = 0.33285477 + u * (0.25782051 + u * small)
    small = u * (0.99999996 + u * (0.50001056 + u * small))
    exponential = tl.where(u < 0.25, small, -LN2 * _log2(1.0 - u))
    return -LN2 * _log2(exponential)


@triton.jit
def _log2(x):
    if INTERPRETED:
        return tl.log2(x)
    else:
        return libdevice.fast_log2f(x)
