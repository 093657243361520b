"""A step with prompts, copied to where its graph looks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.types import AttentionMetadata, Batch
from plugins.runners.cuda_graph import ends

SEEDS = st.integers(0, 2**31)


def step(tokens: int, requests: int, pages: int, seed: int, device: str, wanted: int = 0) -> Batch:
    """Arbitrary numbers in the form of a step."""
    made = torch.Generator().manual_seed(seed)

    def some(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.randint(0, 10_000, shape, generator=made, dtype=dtype).to(device)

    cuts = torch.randperm(tokens - 1, generator=made)[: requests - 1] + 1
    starts = torch.cat([torch.tensor([0]), cuts.sort().values, torch.tensor([tokens])])
    return Batch(
        tokens=some(tokens, dtype=torch.int64),
        positions=some(tokens, dtype=torch.int64),
        attention=AttentionMetadata(
            query_start=starts.int().to(device),
            context_len=some(requests),
            page_table=some(requests, pages),
            slots=some(tokens, dtype=torch.int64),
            max_query=tokens,
            max_context=0,
            decodes=0,
        ),
        sample_index=some(0, dtype=torch.int64),
        rows=None,  # type: ignore[arg-type]
        wanted=some(wanted, dtype=torch.int64) if wanted else None,
    )


def columns(batch: Batch) -> dict[str, torch.Tensor]:
    meta = batch.attention
    return {
        "tokens": batch.tokens,
        "positions": batch.positions,
        "slots": meta.slots,
        "query_start": meta.query_start[1:],  # the first is always 0
        "context_len": meta.context_len,
        "page_table": meta.page_table,
        "wanted": batch.tokens[:0] if batch.wanted is None else batch.wanted,
    }


@settings(max_examples=30)
@given(
    tokens=st.integers(1, 700),
    requests=st.integers(1, 40),
    pages=st.integers(1, 300),
    more=st.tuples(st.integers(0, 600), st.integers(0, 30), st.integers(0, 20)),
    seed=SEEDS,
)
def test_a_step_lies_where_its_graph_looks_and_all_else_is_padding(
    tokens, requests, pages, more, seed
):
    requests = min(tokens, requests)
    batch = step(tokens, requests, pages, seed, "cpu")
    static = step(tokens + more[0], requests + more[1], pages + more[2], seed + 1, "cpu")
    ends.place(static, batch)
    there, brought = columns(static), columns(batch)
    padding = {"tokens": 0, "positions": 0, "slots": -1, "query_start": tokens, "context_len": 0}
    for name, value in padding.items():
        count = len(brought[name])
        assert torch.equal(there[name][:count], brought[name]), name
        assert (there[name][count:] == value).all(), name
    assert torch.equal(there["page_table"][:requests, :pages], brought["page_table"])


@settings(max_examples=10)
@given(
    tokens=st.integers(1, 700),
    more=st.integers(0, 600),
    wanted=st.tuples(st.integers(1, 20), st.integers(0, 20)),
    seed=SEEDS,
)
def test_without_room_for_requests_the_tokens_are_placed_alone(tokens, more, wanted, seed):
    batch = step(tokens, 1, 3, seed, "cpu", wanted[0])
    static = step(tokens + more, 1, 3, seed + 1, "cpu", sum(wanted))
    meta = static.attention
    meta.context_len, meta.page_table = meta.context_len[:0], meta.page_table[:0]
    meta.query_start = meta.query_start[:1]
    ends.place(static, batch)
    there, brought = columns(static), columns(batch)
    for name, value in {"tokens": 0, "positions": 0, "slots": -1, "wanted": 0}.items():
        count = len(brought[name])
        assert torch.equal(there[name][:count], brought[name]), name
        assert (there[name][count:] == value).all(), name


@pytest.mark.parametrize("seed", range(20))
def test_the_kernel_places_what_its_twin_places(device: str, seed: int) -> None:
    if device == "cpu":
        pytest.skip("it needs a GPU, or tests/plugins/test_inputs_triton.py's interpreter")
    from plugins.runners.cuda_graph import kernels

    pick = torch.Generator().manual_seed(seed)
    tokens, pages, extra, more, wider = (
        int(torch.randint(1, most, (), generator=pick)) for most in (900, 500, 700, 40, 30)
    )
    requests = int(torch.randint(1, min(tokens, 90) + 1, (), generator=pick))
    pieces, wanted = seed % 4 == 0, min(requests, 3)
    batch = step(tokens, requests, pages, seed, device, wanted)
    ours, theirs = (
        step(
            *(tokens + extra, requests + more, pages + wider, seed + 1, device),
            wanted + 2 if pieces else 0,
        )
        for _ in range(2)
    )
    if pieces:
        for static in (ours, theirs):
            meta = static.attention
            meta.context_len, meta.page_table = meta.context_len[:0], meta.page_table[:0]
    kernels.place(ours, batch)
    ends.place(theirs, batch)
    for name, column in columns(ours).items():
        assert torch.equal(column, columns(theirs)[name]), name
