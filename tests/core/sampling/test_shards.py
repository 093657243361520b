"""Draws from parts of the vocabulary: every rank gets what one rank draws from the whole."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from core.parallel import Communicator, ThreadGroup
from core.sampling.params import SamplingParams
from core.sampling.rows import SampleRows
from core.sampling.shards import Shard
from core.testing.sampling import make_rows


def spans(size: int, ranks: int) -> list[tuple[int, int]]:
    """Equal chunks, as `vocab` cuts: the last ranks may have fewer tokens, or none."""
    chunk = -(-size // ranks)
    return [(min(r * chunk, size), min((r + 1) * chunk, size)) for r in range(ranks)]


def of_ranks(logits: Tensor, rows: SampleRows, ranks: int, floor: Any = None) -> list[Any]:
    """(ids, values) of each rank."""

    def one(comm: Communicator) -> Any:
        first, last = spans(logits.shape[1], ranks)[comm.rank]
        chunk = -(-logits.shape[1] // ranks)
        part = torch.full((len(logits), chunk), math.nan, dtype=logits.dtype)  # padding
        part[:, : last - first] = logits[:, first:last]
        mine = rows.on(Shard(comm, first, last - first))
        assert mine.draw(part, floor).tolist() == mine.drawn(part, floor)[0].tolist()
        return mine.drawn(part, floor)

    return ThreadGroup(ranks).run(one)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**20),
    ranks=st.integers(1, 5),
    size=st.integers(1, 60),
    temperatures=st.lists(st.sampled_from([0.0, 0.3, 1.0, 4.0]), min_size=1, max_size=4),
    coarse=st.booleans(),
)
def test_all_ranks_draw_what_one_draws(
    seed: int, ranks: int, size: int, temperatures: list[float], coarse: bool
) -> None:
    made = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(len(temperatures), size, generator=made)
    if coarse:  # ties, within and across parts
        logits = logits.round()
    wishes = [SamplingParams(temperature=t, seed=s) for s, t in enumerate(temperatures)]
    rows = make_rows(wishes, size, positions=[7 * s + 1 for s in range(len(wishes))])
    wanted = rows.draw(logits)
    for ids, values in of_ranks(logits, rows, ranks):
        assert torch.equal(ids, wanted)
        assert values.isfinite().all()


def test_half_precision_and_a_floor() -> None:
    logits = torch.randn(6, 40, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    rows = make_rows([SamplingParams(seed=s) for s in range(6)], 40)
    floor = logits.float().topk(5).values[:, -1]
    wanted = rows.draw(logits, floor)
    for ids, _ in of_ranks(logits, rows, 3, floor):
        assert torch.equal(ids, wanted)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_a_token_or_with_nan_is_seen_by_all(temperature: float) -> None:
    logits = torch.zeros(4, 10)
    logits[0] = -math.inf
    logits[1, 9] = math.nan
    logits[2, 1] = math.inf
    logits[3, :9] = -math.inf  # one token, on the last rank
    rows = make_rows([SamplingParams(temperature=temperature, seed=s) for s in range(4)], 10)
    for ids, values in of_ranks(logits, rows, 3):
        assert ids.tolist() == [-1, -1, -1, 9]
        assert values[0] == -math.inf
        assert values[1:3].isnan().all()
        assert values[3].isfinite()


def test_no_rank_sees_more_than_two_words_a_row_of_the_others() -> None:
    seen: list[int] = []

    def one(comm: Communicator) -> None:
        exchange = comm.exchange  # type: ignore[attr-defined]
        comm.exchange = lambda x: seen.append(x.numel()) or exchange(x)  # type: ignore
        rows.on(Shard(comm, 50 * comm.rank, 50)).draw(torch.randn(3, 50))

    rows = make_rows([SamplingParams(seed=s) for s in range(3)], 100)
    ThreadGroup(2).run(one)
    assert seen == [6, 6]
