"""FlashAttention's functions on a CPU: the parameters of each generation, computed in float64.

Values in slots that a request does not have are read as in the originals: where these would load
them, a NaN comes through.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

NO_WINDOW = (-1, -1)


def one(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, window: Any) -> Tensor:
    """q [N, H, D] are the last of the positions of k and v [K, KV, D]; [N, H, D]."""
    n, length = len(q), len(k)
    if length == 0:
        return torch.zeros_like(q)
    group = q.shape[1] // k.shape[1]
    wide, keys, values = (x.double() for x in (q, k, v))
    keys, values = (x.repeat_interleave(group, 1) for x in (keys, values))
    scores = torch.einsum("nhd,khd->hnk", wide, keys) * scale
    position = torch.arange(length - n, length)[:, None]
    token = torch.arange(length)
    left, right = (None if side in (-1, None) else side for side in window)
    right = 0 if causal else right
    hidden = torch.zeros(n, length, dtype=torch.bool)
    if right is not None:
        hidden |= token > position + right
    if left is not None:
        hidden |= token < position - left
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("hnk,khd->nhd", weights, values).to(q.dtype)


def paged(cache: Tensor, pages: Tensor, length: int) -> Tensor:
    """The first `length` tokens of a request whose pages are pages [P]."""
    assert pages.dtype == torch.int32
    size = cache.shape[1]
    wanted = pages[: -(-length // size)].long()
    return cache[wanted].flatten(0, 1)[:length]


def varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, longest: tuple[int, int],
    scale: float, causal: bool, window: Any, pages: Tensor | None = None,
) -> Tensor:  # fmt: skip
    assert cu_q.dtype == cu_k.dtype == torch.int32
    queries, keys = cu_q.tolist(), cu_k.tolist()
    assert queries[0] == keys[0] == 0
    assert queries[-1] == len(q)
    assert pages is not None or keys[-1] == len(k)
    found = []
    for b in range(len(queries) - 1):
        mine = q[queries[b] : queries[b + 1]]
        length = keys[b + 1] - keys[b]
        assert len(mine) <= longest[0]
        assert length <= longest[1]
        if pages is None:
            some = k[keys[b] : keys[b + 1]], v[keys[b] : keys[b + 1]]
        else:
            some = paged(k, pages[b], length), paged(v, pages[b], length)
        found.append(one(mine, *some, scale, causal, window))
    return torch.cat(found)


def cached(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, pages: Tensor, scale: float, causal: bool,
    window: Any,
) -> Tensor:  # fmt: skip
    assert lengths.dtype == torch.int32
    assert q.ndim == 4
    found = [
        one(q[b], paged(k, pages[b], n), paged(v, pages[b], n), scale, causal, window)
        for b, n in enumerate(lengths.tolist())
    ]
    return torch.stack(found)


def varlen_2(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
    softmax_scale=None, causal=False, window_size=NO_WINDOW, softcap=0.0, alibi_slopes=None,
    deterministic=False, return_attn_probs=False, block_table=None,
):  # fmt: skip
    """flash_attn 2.8: flash_attn_varlen_func."""
    longest = (max_seqlen_q, max_seqlen_k)
    return varlen(
        q, k, v, cu_seqlens_q, cu_seqlens_k, longest, softmax_scale, causal, window_size,
        block_table,
    )  # fmt: skip


def cached_2(
    q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
    cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False,
    window_size=NO_WINDOW, softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0,
    return_softmax_lse=False,
):  # fmt: skip
    """flash_attn 2.8: flash_attn_with_kvcache."""
    assert k is v is None
    return cached(
        q, k_cache, v_cache, cache_seqlens, block_table, softmax_scale, causal, window_size
    )


def varlen_3(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=None,
    seqused_k=None, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None,
    v_descale=None, window_size=NO_WINDOW, attention_chunk=0, softcap=0.0, num_splits=1,
    pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False,
):  # fmt: skip
    """flash_attn_interface: flash_attn_varlen_func; older ones return sums as well."""
    longest = (max_seqlen_q, max_seqlen_k)
    found = varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, longest, softmax_scale, causal, window_size)
    return found, None


def operator_3(
    q, k, v, k_new=None, v_new=None, q_v=None, out=None, cu_seqlens_q=None, cu_seqlens_k=None,
    cu_seqlens_k_new=None, seqused_q=None, seqused_k=None, max_seqlen_q=None, max_seqlen_k=None,
    page_table=None, kv_batch_idx=None, leftpad_k=None, rotary_cos=None, rotary_sin=None,
    seqlens_rotary=None, q_descale=None, k_descale=None, v_descale=None, softmax_scale=None,
    is_causal=False, window_size_left=-1, window_size_right=-1, attention_chunk=0, softcap=0.0,
    is_rotary_interleaved=False, scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0,
):  # fmt: skip
    """torch.ops.flash_attn_3.fwd, which the functions call."""
    assert num_splits == 1
    longest = (max_seqlen_q, max_seqlen_k)
    window = (window_size_left, window_size_right)
    found = varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, longest, softmax_scale, is_causal, window)
    return out.copy_(found), None, None, None


def cached_3(
    q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None,
    cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, page_table=None,
    cu_seqlens_q=None, cu_seqlens_k_new=None, max_seqlen_q=None, rotary_seqlens=None,
    q_descale=None, k_descale=None, v_descale=None, softmax_scale=None, causal=False,
    window_size=NO_WINDOW, attention_chunk=0, softcap=0.0, rotary_interleaved=True,
    scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0, return_softmax_lse=False,
):  # fmt: skip
    """flash_attn_interface: flash_attn_with_kvcache."""
    return cached(
        q, k_cache, v_cache, cache_seqlens, page_table, softmax_scale, causal, window_size
    )


def varlen_4(
    q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None,
    min_seqlen_k=None, seqused_q=None, seqused_k=None, gather_kv_indices=None, page_table=None,
    softmax_scale=None, causal=False, window_size=(None, None), learnable_sink=None, softcap=0.0,
    num_splits=1, pack_gqa=None, deterministic=False, return_lse=False,
):  # fmt: skip
    """flash_attn.cute 4.0: flash_attn_varlen_func."""
    if page_table is not None:
        assert cu_seqlens_q is cu_seqlens_k is None
        assert max(seqused_k.tolist()) <= max_seqlen_k
        how = (softmax_scale, causal, window_size)
        return cached(q, k, v, seqused_k, page_table, *how), None
    longest = (max_seqlen_q, max_seqlen_k)
    found = varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, longest, softmax_scale, causal, window_size)
    return found, None


MODULES: dict[int, dict[str, dict[str, Any]]] = {
    2: {
        "flash_attn_2_cuda": {},
        "flash_attn": {"flash_attn_varlen_func": varlen_2, "flash_attn_with_kvcache": cached_2},
    },
    3: {
        "flash_attn_interface": {
            "flash_attn_varlen_func": varlen_3,
            "flash_attn_with_kvcache": cached_3,
        }
    },
    4: {"flash_attn": {}, "flash_attn.cute": {"flash_attn_varlen_func": varlen_4}},
}


def install_operator(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Generation 3 with what lies below its functions. -> its calls"""
    calls = []

    def noted(*args: Any, **kwargs: Any) -> Any:
        calls.append(kwargs)
        return operator_3(*args, **kwargs)

    monkeypatch.setattr(torch.ops.flash_attn_3, "fwd", noted, raising=False)
    return calls


def install(monkeypatch: pytest.MonkeyPatch, *numbers: int, capability: tuple[int, int]) -> None:
    """Pretend that these generations, and no others, are installed on such a device."""
    from plugins.attention.flash import adapters, generations

    names = {name for modules in MODULES.values() for name in modules}
    there = {name for number in numbers for name in MODULES[number]}
    monkeypatch.setattr(generations, "installed", lambda name: name in there)
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)
    for number in numbers:
        for name, contents in MODULES[number].items():
            module = sys.modules.get(name) or ModuleType(name)
            for key, value in contents.items():
                setattr(module, key, value)
            monkeypatch.setitem(sys.modules, name, module)
            parent, _, child = name.rpartition(".")
            if parent:
                monkeypatch.setattr(sys.modules[parent], child, module, raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    assert adapters.torch is torch
