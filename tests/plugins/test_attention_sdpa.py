"""The sdpa backend against attention written out in float64, over a cache full of NaN."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from core.types import AttentionMetadata, AttentionShape, KVLayer
from plugins.attention import sdpa
from plugins.attention.sdpa import Sdpa


@dataclass
class Case:
    """Requests as (context before the step, new tokens), and what a step of them needs."""

    requests: list[tuple[int, int]]
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    page_size: int = 4
    window: int | None = None
    layout: str = "tokens"
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    adjacent: bool = False  # pages of a request follow one another
    seed: int = 0

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        size = self.page_size
        counts = [new for _, new in self.requests]
        lengths = [old + new for old, new in self.requests]
        wanted = [-(-length // size) for length in lengths]
        order = list(range(sum(wanted) + 3))
        if not self.adjacent:
            random.Random(self.seed).shuffle(order)
        widest = max(wanted)
        tables, at = [], 0
        for pages in wanted:
            tables.append(order[at : at + pages] + [999_999] * (widest - pages))
            at += pages
        total = sum(counts)
        kv = (self.kv_heads, self.head_dim)
        shape = (len(order), size, *kv)
        self.keys = [torch.randn(n, *kv).to(self.dtype) for n in lengths]
        self.values = [torch.randn(n, *kv).to(self.dtype) for n in lengths]
        self.q = torch.randn(total, self.heads, self.head_dim).to(self.dtype)
        self.cache = KVLayer(*(torch.full(shape, torch.nan, dtype=self.dtype) for _ in range(2)))
        for table, keys, values in zip(tables, self.keys, self.values, strict=True):
            for position in range(len(keys)):
                page, offset = table[position // size], position % size
                self.cache.k[page, offset] = keys[position]
                self.cache.v[page, offset] = values[position]
        if self.layout == "heads":
            self.cache = KVLayer(
                *(x.transpose(1, 2).contiguous().transpose(1, 2) for x in self.cache)
            )
        starts = [sum(counts[:i]) for i in range(len(counts) + 1)]
        self.meta = AttentionMetadata(
            query_start=torch.tensor(starts, dtype=torch.int32, device=self.device),
            context_len=torch.tensor(lengths, dtype=torch.int32, device=self.device),
            page_table=torch.tensor(tables, dtype=torch.int32, device=self.device),
            slots=torch.zeros(total, dtype=torch.int64, device=self.device),
            max_query=max(counts),
            max_context=max(lengths),
            decodes=0,
            query_lens=counts,
            context_lens=lengths,
        )

    def backend(self) -> Sdpa:
        shape = AttentionShape(
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            scale=0.3,
            page_size=self.page_size,
            window=self.window,
            dtype=self.dtype,
            cache_dtype=self.dtype,
            device=self.device,
        )
        assert Sdpa.rejects(shape) == []
        return Sdpa(shape, Sdpa.Options())

    def found(self) -> Tensor:
        backend = self.backend()
        backend.plan(self.meta)
        q = self.q.to(self.device)
        cache = KVLayer(*(x.to(self.device) for x in self.cache))
        new = torch.zeros(len(q), self.kv_heads, self.head_dim)  # stored already, so not read
        with torch.inference_mode():
            return backend.forward(q, new * torch.nan, new * torch.nan, cache, self.meta).cpu()

    def expected(self) -> Tensor:
        """Softmax of scaled scores over the tokens that each token sees, one token at a time."""
        rows, at = [], 0
        for (old, new), keys, values in zip(self.requests, self.keys, self.values, strict=True):
            for i in range(new):
                first = 0 if self.window is None else max(0, old + i + 1 - self.window)
                seen = slice(first, old + i + 1)
                for head in range(self.heads):
                    group = head // (self.heads // self.kv_heads)
                    q = self.q[at + i, head].double()
                    scores = 0.3 * (keys[seen, group].double() @ q)
                    rows.append(scores.softmax(0) @ values[seen, group].double())
            at += new
        return torch.stack(rows).view(-1, self.heads, self.head_dim)

    def check(self, tolerance: float = 2e-6) -> None:
        found = self.found().double()
        assert found.isfinite().all()
        torch.testing.assert_close(found, self.expected(), rtol=0, atol=tolerance)


REQUESTS = {
    "prompt": [(0, 11)],
    "one token": [(0, 1)],
    "decode": [(10, 1)],
    "decodes": [(3, 1), (4, 1), (15, 1), (16, 1), (0, 1)],
    "chunk": [(9, 6)],
    "chunk at a page": [(8, 4)],
    "mixed": [(7, 1), (12, 1), (0, 5), (6, 7), (0, 4)],
    "pages just full": [(0, 4), (4, 4), (7, 1), (8, 1)],
}


@pytest.mark.parametrize("window", [None, 1, 3, 4, 100])
@pytest.mark.parametrize("requests", REQUESTS)
def test_it_is_attention(requests, window, device):
    Case(REQUESTS[requests], window=window, device=device).check()


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (6, 1), (6, 2), (6, 6), (8, 2)])
def test_groups_of_query_heads(heads, kv_heads, device):
    Case(REQUESTS["mixed"], heads=heads, kv_heads=kv_heads, device=device).check()


@pytest.mark.parametrize("page_size", [1, 2, 16, 256])
@pytest.mark.parametrize("layout", ["tokens", "heads"])
def test_pages_of_any_size_and_order(page_size, layout, device):
    Case(REQUESTS["mixed"], page_size=page_size, layout=layout, device=device).check()


@pytest.mark.parametrize("adjacent", [True, False])
def test_a_cache_that_is_a_slice_of_another(adjacent, device):
    case = Case(REQUESTS["mixed"], adjacent=adjacent, device=device)
    both = torch.stack(list(case.cache), 1)  # [pages, 2, page_size, KV, D]
    case.cache = KVLayer(both[:, 0], both[:, 1])
    case.check()


@pytest.mark.parametrize("window", [None, 5, 20])
def test_prompts_longer_than_a_tile(monkeypatch, window, device):
    monkeypatch.setattr(sdpa, "TILE", 8)
    Case([(0, 29), (13, 30), (3, 16), (2, 1)], window=window, device=device).check()


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize(
    ("limit", "groups"),
    [(0, [1] * 6), (2 * 5 * 4 * 128, [2, 1, 3]), (1 << 20, [3, 3])],
    ids=["none", "two of five pages", "any"],
)
def test_decodes_of_similar_lengths_share_a_call(monkeypatch, limit, groups, window, device):
    monkeypatch.setattr(sdpa, "GROUP", limit)
    # 5, 4, 5, 2, 2 and 1 pages of 4 tokens, each 128 bytes of keys
    case = Case([(19, 1), (15, 1), (16, 1), (5, 1), (7, 1), (0, 1)], window=window, device=device)
    backend = case.backend()
    backend.plan(case.meta)
    work = case.meta.private[backend]
    found = [len(w.queries) if isinstance(w, sdpa.Decodes) else 1 for w in work]
    assert window is not None or found == groups
    case.check()


def test_head_sizes_that_are_no_power_of_two(device):
    Case(REQUESTS["mixed"], head_dim=10, device=device).check()


def test_bfloat16_rounds_no_more_than_its_result_must():
    case = Case([(40, 1), (0, 40), (17, 20)], dtype=torch.bfloat16, head_dim=64)
    expected = case.expected()
    error = (case.found().double() - expected).square().mean().sqrt()
    rounding = (expected.bfloat16().double() - expected).square().mean().sqrt()
    assert error < 3 * rounding


def test_two_backends_plan_one_step():
    case, narrow = Case(REQUESTS["mixed"]), Case(REQUESTS["mixed"], window=2)
    full, windowed = case.backend(), narrow.backend()
    full.plan(case.meta)
    windowed.plan(case.meta)
    new = torch.zeros(len(case.q), 2, 16)
    for backend, of in ((full, case), (windowed, narrow)):
        found = backend.forward(case.q, new, new, case.cache, case.meta)
        torch.testing.assert_close(found.double(), of.expected(), rtol=0, atol=2e-6)


@given(data=st.data())
@settings(max_examples=40)
def test_any_batch(data):
    requests = data.draw(
        st.lists(st.tuples(st.integers(0, 20), st.integers(1, 12)), min_size=1, max_size=4)
    )
    kv_heads = data.draw(st.integers(1, 3))
    Case(
        requests,
        heads=kv_heads * data.draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        head_dim=data.draw(st.sampled_from([2, 8])),
        page_size=data.draw(st.integers(1, 9)),
        window=data.draw(st.none() | st.integers(1, 25)),
        layout=data.draw(st.sampled_from(["tokens", "heads"])),
        adjacent=data.draw(st.booleans()),
    ).check()
