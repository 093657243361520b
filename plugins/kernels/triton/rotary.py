"""Norm and rotation of queries and keys, and the store of keys and values, in one launch.

A head's first 2 D' entries turn: entry i and entry i + D' are a pair, so a head is worked on as
two halves [D'] of equal layout, and a rest [D - 2 D'] that does not turn. All of it is computed in
float32 and rounded once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from core.triton_launch import Launcher, power_of_two
from core.types import KVLayer

TILE = 1024  # numbers that a program works on


@triton.jit(do_not_specialize=["eps"])
def _rope_store(
    q,  # [T, H, D]
    k,  # [T, KV, D]
    v,  # [T, KV, D]
    q_weight,  # [D]
    k_weight,  # [D]
    rope,  # [positions, 2, HALF] float32: cosines, then sines
    positions,  # [T]
    slots,  # [T]; negative: not stored
    q_out,  # [T, H, D]
    k_out,  # [T, KV, D]
    k_cache,  # [pages, PAGE, KV, D]
    v_cache,  # [pages, PAGE, KV, D]
    eps,
    H: tl.constexpr,
    KV: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,  # D'
    PAGE: tl.constexpr,
    Q: tl.constexpr,  # elements from token to token, and from head to head
    K: tl.constexpr,
    V: tl.constexpr,
    K_CACHE: tl.constexpr,  # elements from page to page, token to token, head to head
    V_CACHE: tl.constexpr,
    HEADS: tl.constexpr,  # heads of a program
    BLOCK: tl.constexpr,  # the powers of two from D, D' and the rest up
    HALF_BLOCK: tl.constexpr,
    REST_BLOCK: tl.constexpr,
    NORM: tl.constexpr,
    launch_pdl: tl.constexpr,
):
    """Grid (T, parts): the first parts of a token are its queries, then keys, then values."""
    if launch_pdl:
        gdc_launch_dependents()
    Q_PARTS: tl.constexpr = (H + HEADS - 1) // HEADS
    KV_PARTS: tl.constexpr = (KV + HEADS - 1) // HEADS
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    head = tl.arange(0, HEADS)[:, None]
    # Whole tiles, so that what is loaded with them (angles, gains) lies in the registers as the
    # heads do. Loaded once a program it would have to be exchanged through shared memory.
    pair = tl.broadcast_to(tl.arange(0, HALF_BLOCK)[None, :], [HEADS, HALF_BLOCK])
    more = tl.broadcast_to(2 * HALF + tl.arange(0, REST_BLOCK)[None, :], [HEADS, REST_BLOCK])
    if part < Q_PARTS:
        head += part * HEADS
        gains = _gains(q_weight, pair, more, D, HALF, NORM)
        if launch_pdl:
            gdc_wait()
        x = q + token * Q[0] + head * Q[1]
        turned = _turned(
            x, head < H, pair, more, gains, rope, positions + token, eps, D, HALF, NORM
        )
        _put(q_out + (token * H + head) * D, head < H, pair, more, turned, D, HALF)
    elif part < Q_PARTS + KV_PARTS:
        head += (part - Q_PARTS) * HEADS
        gains = _gains(k_weight, pair, more, D, HALF, NORM)
        if launch_pdl:
            gdc_wait()
        slot = tl.load(slots + token).to(tl.int32)
        x = k + token * K[0] + head * K[1]
        turned = _turned(
            x, head < KV, pair, more, gains, rope, positions + token, eps, D, HALF, NORM
        )
        _put(k_out + (token * KV + head) * D, head < KV, pair, more, turned, D, HALF)
        page = (slot // PAGE).to(tl.int64)
        to = k_cache + page * K_CACHE[0] + (slot % PAGE) * K_CACHE[1] + head * K_CACHE[2]
        _put(to, (head < KV) & (slot >= 0), pair, more, turned, D, HALF)
    else:
        head += (part - Q_PARTS - KV_PARTS) * HEADS
        entry = tl.arange(0, BLOCK)[None, :]
        here = (head < KV) & (entry < D)
        if launch_pdl:
            gdc_wait()
        slot = tl.load(slots + token).to(tl.int32)
        value = tl.load(v + token * V[0] + head * V[1] + entry, mask=here, other=0.0)
        page = (slot // PAGE).to(tl.int64)
        to = v_cache + page * V_CACHE[0] + (slot % PAGE) * V_CACHE[1] + head * V_CACHE[2]
        tl.store(to + entry, value, mask=here & (slot >= 0))


@triton.jit
def _gains(weight, pair, more, D: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr):
    """The norm's weights of both halves and the rest, float32, as tiles; ones without a norm."""
    if NORM:
        first = tl.load(weight + pair, mask=pair < HALF, other=0.0).to(tl.float32)
        second = tl.load(weight + HALF + pair, mask=pair < HALF, other=0.0).to(tl.float32)
        rest = tl.load(weight + more, mask=more < D, other=0.0).to(tl.float32)
    else:
        first = tl.full(pair.shape, 1.0, tl.float32)
        second = first
        rest = tl.full(more.shape, 1.0, tl.float32)
    return first, second, rest


@triton.jit
def _turned(
    x,  # [HEADS, 1] pointers to heads
    here,  # [HEADS, 1] which of them are there
    pair,  # [HEADS, D'] places in a half
    more,  # [HEADS, rest] places after both halves
    gains,
    rope,
    position,  # a pointer
    eps,
    D: tl.constexpr,
    HALF: tl.constexpr,
    NORM: tl.constexpr,
):
    """Heads, normed and turned -> their halves [HEADS, D'] and rest, rounded to their type."""
    angle = rope + tl.load(position).to(tl.int64) * (2 * HALF) + pair
    cos = tl.load(angle, mask=pair < HALF, other=0.0)
    sin = tl.load(angle + HALF, mask=pair < HALF, other=0.0)
    first = tl.load(x + pair, mask=here & (pair < HALF), other=0.0).to(tl.float32)
    second = tl.load(x + HALF + pair, mask=here & (pair < HALF), other=0.0).to(tl.float32)
    rest = tl.load(x + more, mask=here & (more < D), other=0.0).to(tl.float32)
    if NORM:
        squares = tl.sum(first * first + second * second, 1) + tl.sum(rest * rest, 1)
        scale = tl.rsqrt(squares / D + eps)[:, None]
        first *= scale * gains[0]
        second *= scale * gains[1]
        rest *= scale * gains[2]
    type = x.dtype.element_ty
    turned = (first * cos - second * sin).to(type), (second * cos + first * sin).to(type)
    return turned[0], turned[1], rest.to(type)


@triton.jit
def _put(to, here, pair, more, turned, D: tl.constexpr, HALF: tl.constexpr):
    """Store heads, as `_turned` gives them, at the pointers `to` [HEADS, 1] where `here`."""
    tl.store(to + pair, turned[0], mask=here & (pair < HALF))
    tl.store(to + HALF + pair, turned[1], mask=here & (pair < HALF))
    tl.store(to + more, turned[2], mask=here & (more < D))


_launch = Launcher(_rope_store)


def rope_store(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    norms: tuple[Tensor, Tensor, float] | None,
    rope: Tensor,
    positions: Tensor,
    cache: KVLayer,
    slots: Tensor,
    pdl: bool,
) -> tuple[Tensor, Tensor]:
    """`core.interfaces.Kernels.rope_store`. Any strides, but entries of a head are neighbours."""
    tokens, heads, size = q.shape
    kv_heads = k.shape[1]
    assert all(x.is_contiguous() for x in (rope, positions, slots))
    assert q.stride(2) == k.stride(2) == v.stride(2) == 1
    assert cache.k.stride(3) == cache.v.stride(3) == 1
    q_out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    k_out = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    if tokens == 0:
        return q_out, k_out
    half = rope.shape[-1]
    block = power_of_two(size)
    each = min(power_of_two(max(heads, kv_heads)), max(1, TILE // block))
    q_weight, k_weight, eps = norms if norms is not None else (q, q, 0.0)
    _launch(
        (tokens, -(-heads // each) + 2 * -(-kv_heads // each), 1),
        (q, k, v, q_weight, k_weight, rope, positions, slots, q_out, k_out, cache.k, cache.v),
        (eps,),
        (
            heads,
            kv_heads,
            size,
            half,
            cache.k.shape[1],
            q.stride()[:2],
            k.stride()[:2],
            v.stride()[:2],
            cache.k.stride()[:3],
            cache.v.stride()[:3],
            each,
            block,
            power_of_two(half),
            power_of_two(max(size - 2 * half, 1)),
            norms is not None,
        ),
        warps=max(1, each * block // 512),  # 16 bytes a thread of each half
        pdl=pdl,
    )
    return q_out, k_out
