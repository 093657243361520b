"""What the sdpa backend does for speed; that it is attention is tested by core.testing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.testing.attention import AttentionCase
from core.testing.numbers import assert_close
from plugins.attention import sdpa
from plugins.attention.sdpa import Sdpa

MIXED = [(7, 1), (12, 1), (0, 5), (6, 7), (0, 4)]


def case(requests=MIXED, **changes) -> AttentionCase:
    sizes = {"heads": 4, "kv_heads": 2, "head_dim": 16, "page_size": 4}
    return AttentionCase(requests, **(sizes | changes))


@pytest.mark.parametrize("page_size", [1, 2, 16, 256])
@pytest.mark.parametrize("layout", ["tokens", "heads"])
def test_pages_of_any_size_and_order(page_size, layout, device):
    case(page_size=page_size, layout=layout, device=device).check(Sdpa)


@pytest.mark.parametrize("adjacent", [True, False])
def test_a_cache_that_is_a_slice_of_another(adjacent, device):
    case(adjacent=adjacent, joint=True, device=device).check(Sdpa)


@pytest.mark.parametrize("window", [None, 5, 20])
def test_prompts_longer_than_a_tile(monkeypatch, window, device):
    monkeypatch.setattr(sdpa, "TILE", 8)
    case([(0, 29), (13, 30), (3, 16), (2, 1)], window=window, device=device).check(Sdpa)


@pytest.mark.parametrize("count", [257, 300, 513])
def test_prompts_whose_last_tile_is_short(count, device):
    case([(0, count), (70, 257)], device=device).check(Sdpa)


@given(count=st.integers(1, sdpa.TILE), before=st.integers(0, 3000))
def test_masks_begin_where_a_gpu_can_read_them(count, before):
    """Its kernels read 16 bytes at once, and do not ask whether they may."""
    like = torch.empty(0, device="meta", dtype=torch.bfloat16)
    backend = Sdpa(case().shape, Sdpa.Options())
    mask = backend._seen(count, count + before, like)
    assert mask.storage_offset() * mask.element_size() % 16 == 0


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize(
    ("limit", "groups"),
    [(0, [1] * 6), (2 * 5 * 4 * 128, [2, 1, 3]), (1 << 20, [3, 3])],
    ids=["none", "two of five pages", "any"],
)
def test_decodes_of_similar_lengths_share_a_call(monkeypatch, limit, groups, window, device):
    monkeypatch.setattr(sdpa, "GROUP", limit)
    # 5, 4, 5, 2, 2 and 1 pages of 4 tokens, each 128 bytes of keys
    six = case([(19, 1), (15, 1), (16, 1), (5, 1), (7, 1), (0, 1)], window=window, device=device)
    backend, meta = Sdpa(six.shape, Sdpa.Options()), six.meta()
    backend.plan(meta)
    work = meta.private[backend]
    found = [len(w.queries) if isinstance(w, sdpa.Decodes) else 1 for w in work]
    assert window is not None or found == groups
    assert_close(six.forward(backend, meta), six.expected(), six.dtype)


@given(data=st.data())
@settings(max_examples=40)
def test_any_batch(data):
    requests = data.draw(
        st.lists(st.tuples(st.integers(0, 20), st.integers(1, 12)), min_size=1, max_size=4)
    )
    kv_heads = data.draw(st.integers(1, 3))
    case(
        requests,
        heads=kv_heads * data.draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        head_dim=data.draw(st.sampled_from([2, 8])),
        page_size=data.draw(st.integers(1, 9)),
        window=data.draw(st.none() | st.integers(1, 25)),
        layout=data.draw(st.sampled_from(["tokens", "heads"])),
        adjacent=data.draw(st.booleans()),
        strided=data.draw(st.booleans()),
        joint=data.draw(st.booleans()),
    ).check(Sdpa)
