"""Attention probabilities from queries and the paged keys, in float32, whatever computes attention.

The backend's own kernels never hold them: they are computed a second time, for the requests that
ask.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from core.layers import Attention
from core.types import Batch

TILE = 64 << 20  # bytes of probabilities that are on the device at the same time


def rotated_queries(attention: Attention, arguments: tuple, index: Tensor) -> Tensor:
    """Queries [len(index), H, D] as attention sees them, from the arguments of its forward."""
    qkv, q_norm, k_norm, rope, batch = arguments
    norms = None
    if q_norm is not None and k_norm is not None:
        norms = (q_norm.weight, k_norm.weight, q_norm.eps)
    heads = qkv.index_select(0, index).view(len(index), -1, attention.head_dim)
    q, k, v = heads.split((attention.heads, attention.kv_heads, attention.kv_heads), dim=1)
    nowhere = torch.full((len(index),), -1, dtype=torch.int64, device=qkv.device)
    positions = batch.positions.index_select(0, index)
    q, _ = attention.kernels.rope_store(q, k, v, norms, rope, positions, attention.cache, nowhere)
    return q


def tiles(
    attention: Attention, q: Tensor, batch: Batch, b: int, start: int
) -> Iterator[tuple[int, Tensor]]:
    """Probabilities of one request, a few queries at a time: (position, [H, queries, keys]).

    q [t, H, D] are its queries at positions start to start + t, whose keys are stored. The last
    query of a tile sees all its keys.
    """
    end = start + len(q)
    size = attention.cache.k.shape[1]
    pages = batch.attention.page_table[b, : -(-end // size)].long()
    keys = attention.cache.k[pages].flatten(0, 1)[:end].float()  # [K, KV, D]
    step = max(1, TILE // (4 * q.shape[1] * end))
    for first in range(0, len(q), step):
        some = q[first : first + step]
        at = start + first
        seen = keys[: at + len(some)]
        yield at, probabilities(some, seen, attention.scale, attention.window)


def probabilities(q: Tensor, keys: Tensor, scale: float, window: int | None) -> Tensor:
    """softmax(q k^T * scale) -> [H, t, K] float32, causal; `window` tokens are seen if it is set.

    q [t, H, D] are at the last t of the K positions of keys [K, KV, D].
    """
    count, heads, _ = q.shape
    length, kv_heads, _ = keys.shape
    grouped = q.float().unflatten(1, (kv_heads, -1)).permute(1, 2, 0, 3)  # [KV, G, t, D]
    scores = grouped.flatten(1, 2) @ keys.float().permute(1, 2, 0)  # [KV, G t, K]
    scores = scores.view(heads, count, length) * scale
    key = torch.arange(length, device=q.device)
    query = key[length - count :, None]
    hidden = key > query
    if window is not None:
        hidden |= key <= query - window
    return scores.masked_fill_(hidden, -math.inf).softmax(-1)
