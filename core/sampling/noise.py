"""Random numbers that depend on a request's seed, a position and a token, and on nothing else.

So a request's tokens do not depend on its neighbours, on preemption, on the batch or on the number
of ranks, and any part of the vocabulary can be drawn alone. All words have 32 bits; * is modulo
2^32, ^ is exclusive or, >>> is a logical and >> an arithmetic shift:

    mix(x):     x ^= x >>> 16;  x *= 0x7FEB352D;  x ^= x >>> 15;  x *= 0x846CA68B;  x ^= x >>> 16
    stream:     s0 = mix(mix(low ^ 0x9E3779B9) ^ high)     low, high: the halves of the seed
                s1 = mix(mix(high ^ 0x85EBCA6B) ^ low)
    key:        k0 = mix(s0 ^ position)    k1 = mix(s1 ^ position)
    bits:       x = (token ^ k0) * 0xED5AD4BB ^ k1
                x ^= x >>> 15;  x *= 0xAC4C1B51;  x ^= x >>> 15;  x *= 0x31848BAB
                bits = x ^ (x >> 16)                       uniform in [0, 2^31)
    uniform:    u = (float(bits) + 0.5) * c                c = (1 - 2^-24) / 2^31, in float32
    exponential e = -log1p(-u)            Gumbel: g = -log(e)

The integers are the same on every device; the logarithms may differ in their last bit, which
changes a token only where two of them tie within 1e-6. u is in (0, 1), and the Gumbel noise lies in
[-2.82, 22.19]: tokens less than about 2^-32 times as likely as the best are never drawn.

Constants: mix is Wellons' lowbias32, the multipliers of `bits` are those of his triple32.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from torch import Tensor

    Word = int | Tensor

RANGE = 26.0
"""More than the largest noise less the smallest: a token that far behind cannot be drawn."""

LOWEST = -3.4e38  # a bound below it would not be a float32
SCALE = (1 - 2**-24) / 2**31
DENSE = 1 / 4  # share of tokens from which on it is cheaper to give noise to all
BLOCK = 2**24  # numbers that get noise at once on an accelerator


def _signed(word: int) -> int:
    return (word & 0xFFFFFFFF) - ((word & 0x80000000) << 1)


_MIX = _signed(0x7FEB352D), _signed(0x846CA68B)
_BITS = _signed(0xED5AD4BB), _signed(0xAC4C1B51), _signed(0x31848BAB)


def stream(seed: int) -> tuple[int, int]:
    """The two words, as signed int32, that stand for a seed of 64 bits."""
    low, high = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    return (
        _signed(_mix_int(_mix_int(low ^ 0x9E3779B9) ^ high)),
        _signed(_mix_int(_mix_int(high ^ 0x85EBCA6B) ^ low)),
    )


def keys(streams: Tensor, positions: Tensor) -> Tensor:
    """Keys [N, 2] int32 for streams [N, 2] int32 at positions [N]."""
    x = streams ^ positions.to(torch.int32)[:, None]
    _fold(x, 16).mul_(_MIX[0])
    _fold(x, 15).mul_(_MIX[1])
    return _fold(x, 16)


def bits(tokens: Tensor, k0: Word, k1: Word) -> Tensor:
    """31 uniform bits, int32, for token ids int32 and the two words of a key, which broadcast."""
    x = torch.bitwise_xor(tokens, k0).mul_(_BITS[0]).bitwise_xor_(k1)
    _fold(x, 15).mul_(_BITS[1])
    _fold(x, 15).mul_(_BITS[2])
    return x.bitwise_xor_(x >> 16)


def gumbel(tokens: Tensor, k0: Word, k1: Word) -> Tensor:
    """Gumbel noise, float32: argmax(logits + gumbel) is a draw from softmax(logits)."""
    u = bits(tokens, k0, k1).to(torch.float32).add_(0.5).mul_(-SCALE)
    return u.log1p_().neg_().log_().neg_()


def argmax(logits: Tensor) -> Tensor:
    """The largest logit's id a row [N] int64, the lowest of equal ones; logits [N, V]."""
    if logits.device.type != "cpu":
        return logits.argmax(-1)
    # numpy finds it ten times as fast as torch, and has no bfloat16
    return torch.tensor([int(row.float().numpy().argmax()) for row in logits.unbind()])


def draw(logits: Tensor, temperature: Tensor, keys: Tensor, floor: Tensor | None = None) -> Tensor:
    """A token a row from softmax(logits / temperature), or the argmax where temperature is 0.

    logits [N, V] of any float dtype, temperature [N], keys [N, 2] int32; floor [N]: logits below
    it are not drawn. -> [N] int64. Of equal values the lowest id is taken. A row with NaN, or
    without a finite logit, gives a token whose logit is not finite.
    """
    return drawn(logits, temperature, keys, floor)[0]


def drawn(
    logits: Tensor,
    temperature: Tensor,
    keys: Tensor,
    floor: Tensor | None = None,
    first: int = 0,
) -> tuple[Tensor, Tensor]:
    """`draw`, and the score that has won: logit / temperature + noise, [N] float32.

    `first`: the id of the first logit, where they are a part of the vocabulary.
    """
    if logits.device.type == "cpu":
        floors = [-math.inf] * len(logits) if floor is None else floor.tolist()
        rows = zip(logits.unbind(), temperature.tolist(), keys.tolist(), floors, strict=True)
        won = [_draw_row(x, t, key, low, first) for x, t, key, low in rows]
        ids = torch.tensor([id for id, _ in won], dtype=torch.int64)
        return ids, torch.tensor([score for _, score in won], dtype=torch.float32)
    count = max(1, BLOCK // logits.shape[1])
    parts = [
        drawn_from_all(
            logits[start : start + count],
            temperature[start : start + count],
            keys[start : start + count],
            None if floor is None else floor[start : start + count],
            first,
        )
        for start in range(0, max(len(logits), 1), count)
    ]
    return torch.cat([ids for ids, _ in parts]), torch.cat([scores for _, scores in parts])


def drawn_from_all(
    logits: Tensor, temperature: Tensor, keys: Tensor, floor: Tensor | None, first: int
) -> tuple[Tensor, Tensor]:
    """`drawn` for an accelerator: noise for every token, no step that depends on a value."""
    x, t = logits.float(), temperature[:, None]
    tokens = torch.arange(first, first + logits.shape[1], dtype=torch.int32, device=logits.device)
    scores = torch.where(t > 0, x / t + gumbel(tokens, keys[:, :1], keys[:, 1:]), x)
    if floor is not None:
        scores.masked_fill_(x < floor[:, None], -math.inf)
    best, ids = scores.max(-1)
    return ids + first, best


def _draw_row(
    row: Tensor, temperature: float, key: list[int], floor: float, first: int
) -> tuple[int, float]:
    """One row of `drawn` on the CPU, where noise is only made for tokens that could win.

    numpy looks for the best and the possible ones: torch takes about ten times as long.
    """
    logits = row.float()
    x = logits.numpy()
    best = float(x.max())
    if temperature == 0 or not math.isfinite(best):
        return first + int(x.argmax()), best
    possible = x >= max(floor, best - RANGE * temperature, LOWEST)
    if floor == -math.inf and np.count_nonzero(possible) > DENSE * len(x):
        tokens = torch.arange(first, first + len(x), dtype=torch.int32)
        scores = (logits / temperature).add_(gumbel(tokens, *key)).numpy()
        won = int(scores.argmax())
        return first + won, float(scores[won])
    few = torch.from_numpy(np.flatnonzero(possible))
    if not len(few):  # of this part all are below the floor
        return first, -math.inf
    scores = (logits[few] / temperature).add_(gumbel((few + first).to(torch.int32), *key)).numpy()
    won = int(scores.argmax())
    return first + int(few[won]), float(scores[won])


def _fold(x: Tensor, shift: int) -> Tensor:
    """x ^= x >>> shift. torch shifts int32 arithmetically, so the sign's copies are masked."""
    return x.bitwise_xor_((x >> shift).bitwise_and_((1 << (32 - shift)) - 1))


def _mix_int(x: int) -> int:
    x ^= x >> 16
    x = x * 0x7FEB352D & 0xFFFFFFFF
    x ^= x >> 15
    x = x * 0x846CA68B & 0xFFFFFFFF
    return x ^ x >> 16
