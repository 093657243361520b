"""The draw in Triton against its twin, alone and inside the sampler.

Runs on CUDA (`--on cuda`), and without a GPU where TRITON_INTERPRET=1 is set.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from core.sampling import noise
from core.sampling.params import SamplingParams
from core.sampling.rows import SampleRows
from core.testing.sampling import WISHES, accepted, assert_drawn, ids, make_rows, normal, rows_of
from plugins.sampling.default import DefaultSampler
from plugins.sampling.truncation import floors as floors_by_sorting

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
VOCAB = 1500 if INTERPRETED else 151_936
GREEDY = SamplingParams(temperature=0)

dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@pytest.fixture
def ours(device: str) -> Any:
    from plugins.kernels.triton.kernels import TritonKernels

    if reasons := TritonKernels.rejects(torch.float32, device.partition(":")[0]):
        pytest.skip("; ".join(reasons))
    return TritonKernels(TritonKernels.Options())


def logits_of(rows: int, vocab: int, dtype: torch.dtype, device: str, seed: int = 0) -> Tensor:
    return normal(rows, device, seed, vocab).to(dtype)


def drawn(ours: Any, logits: Tensor, rows: SampleRows, floor: Tensor | None = None) -> Tensor:
    return ours.draw(logits, rows.table.columns, rows.index, rows.positions, floor)


def assert_same_draw(
    found: Tensor, logits: Tensor, rows: SampleRows, floor: Tensor | None = None
) -> None:
    """Equal to the twin's, or to a token that scores as much, as far as float32 can tell."""
    wanted = noise.drawn_from_all(logits, rows.temperature, rows.keys, floor, 0)[0]
    assert found.dtype == torch.int64
    assert found.shape == wanted.shape
    other = found != wanted
    tokens = torch.stack((found, wanted), 1)[other]
    x = logits[other].gather(1, tokens).double()
    keys = rows.keys[other]
    bits = noise.bits(tokens.int(), keys[:, :1], keys[:, 1:]).double()
    gumbel = -(-torch.log1p(-(bits + 0.5) * noise.SCALE)).log()
    temperature = rows.temperature[other, None].double()
    assert bool((temperature > 0).all()), "a greedy row differs"
    score = x / temperature + gumbel
    assert bool(((score[:, 0] - score[:, 1]).abs() < 1e-5 * score.abs().amax(1)).all())


def test_the_noise_is_that_of_the_twin(ours: Any, device: str) -> None:
    from plugins.kernels.triton.draw import best

    tokens = torch.arange(4096, dtype=torch.int32, device=device)
    rows = make_rows([SamplingParams(seed=2**63 + 12345)], 4096, positions=[77], device=device)
    keys = rows.keys
    wanted = noise.gumbel(tokens, keys[:, :1], keys[:, 1:])[0]
    scores = [
        best(x[None], rows.table.columns, rows.index, rows.positions, None, False)[0]
        for x in _alone(4096, range(0, 4096, 401), device)
    ]
    found = torch.cat(scores)
    assert torch.allclose(found, wanted[0::401], rtol=1e-6, atol=6e-6)


def _alone(size: int, tokens: Sequence[int], device: str) -> list[Tensor]:
    """Logits that let a single token through, for each of `tokens`."""
    logits = torch.full((len(tokens), size), -math.inf, device=device)
    logits[range(len(tokens)), list(tokens)] = 0
    return list(logits)


@dtypes
@pytest.mark.parametrize("count", [1, 5, 40])
def test_a_draw_is_that_of_the_twin(ours: Any, device: str, dtype: torch.dtype, count: int) -> None:
    wishes = [
        SamplingParams(temperature=[0, 0.3, 0.6, 1.0, 2.0][s % 5], seed=s) for s in range(count)
    ]
    rows = make_rows(wishes, VOCAB, positions=[3 * s + 1 for s in range(count)], device=device)
    logits = logits_of(count, VOCAB, dtype, device)
    assert_same_draw(drawn(ours, logits, rows), logits, rows)


@pytest.mark.parametrize("vocab", [1, 2, 1023, 1025, 4097, 5000])
def test_any_size_of_the_vocabulary(ours: Any, device: str, vocab: int) -> None:
    wishes = [SamplingParams(seed=s) for s in range(20)]
    rows = make_rows(wishes, vocab, device=device)
    logits = logits_of(20, vocab, torch.bfloat16, device)
    assert_same_draw(drawn(ours, logits, rows), logits, rows)
    few = make_rows(wishes[:2], vocab, device=device)
    assert_same_draw(drawn(ours, logits[:2], few), logits[:2], few)


def test_draws_follow_the_distribution(ours: Any, device: str) -> None:
    count, size = 64 if INTERPRETED else 4096, 8
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5, -math.inf, 1.5, -3.0], device=device)
    rows = make_rows([SamplingParams(temperature=0.8, seed=s) for s in range(count)], size,
                     device=device)  # fmt: skip
    found = drawn(ours, logits.expand(count, -1).contiguous(), rows)
    counts = torch.bincount(found, minlength=size)
    assert_drawn(counts.cpu(), (logits.cpu().double() / 0.8).softmax(-1))


@dtypes
def test_of_equal_logits_a_greedy_row_takes_the_lowest_id(
    ours: Any, device: str, dtype: torch.dtype
) -> None:
    logits = torch.full((3, VOCAB), -1.0, dtype=dtype, device=device)
    logits[1, [70, 900, 1300]] = 2.0
    logits[2, [1399, 1400]] = 2.0
    rows = make_rows([GREEDY] * 3, VOCAB, device=device)
    assert drawn(ours, logits, rows).tolist() == [0, 70, 1399]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_without_a_possible_token_or_with_nan_give_one_that_is_not_finite(
    ours: Any, device: str, temperature: float
) -> None:
    logits = logits_of(5, VOCAB, torch.float32, device)
    logits[0] = -math.inf
    logits[1, 1234] = math.nan
    logits[2, 77] = math.inf
    logits[3, :-1] = -math.inf
    rows = make_rows([SamplingParams(temperature=temperature, seed=1)] * 5, VOCAB, device=device)
    for floor in (None, torch.full((5,), -2.0, device=device)):
        found = drawn(ours, logits, rows, floor)
        value = logits.gather(1, found[:, None])[:, 0].isfinite().tolist()
        assert value == [False, False, False, True, True]
        assert found.tolist()[1:4] == [1234, 77, VOCAB - 1]


def test_what_lies_below_the_floor_is_not_drawn(ours: Any, device: str) -> None:
    logits = logits_of(30, VOCAB, torch.bfloat16, device)
    rows = make_rows([SamplingParams(temperature=3.0, seed=s) for s in range(30)], VOCAB,
                     device=device)  # fmt: skip
    floor = logits.float().topk(3).values[:, -1].contiguous()
    found = drawn(ours, logits, rows, floor)
    assert bool((logits.gather(1, found[:, None])[:, 0] >= floor).all())
    assert_same_draw(found, logits, rows, floor)


def test_logits_may_be_a_slice(ours: Any, device: str) -> None:
    wide = logits_of(4, VOCAB + 24, torch.bfloat16, device)
    rows = make_rows([SamplingParams(seed=s, top_k=5) for s in range(4)], VOCAB, device=device)
    part = wide[:, 3 : 3 + VOCAB]
    assert_same_draw(drawn(ours, part, rows), part, rows)
    assert torch.equal(
        ours.floors(part, rows.table.columns, rows.index), floors_by_sorting(part.float(), rows)
    )


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
def test_shards_of_the_vocabulary_draw_what_the_whole_draws(
    ours: Any, device: str, shards: int
) -> None:
    from plugins.kernels.triton.draw import best_of_all, best_of_shard

    wishes = [SamplingParams(temperature=s % 3 / 2, seed=s) for s in range(18)]
    rows = make_rows(wishes, VOCAB, device=device)
    logits = logits_of(18, VOCAB, torch.bfloat16, device)
    logits[3] = -1  # ties throughout
    size = -(-VOCAB // shards)
    parts = []
    for first in range(0, VOCAB, size):
        real = logits[:, first : first + size]
        # a rank's logits are as wide as those of the others, whatever is in them
        padded = torch.full((18, size + 8), 99.0, dtype=logits.dtype, device=device)
        padded[:, : real.shape[1]] = real
        where = rows.table.columns, rows.index, rows.positions
        parts.append(best_of_shard(padded, *where, None, first, real.shape[1], False))
    tokens, scores = best_of_all(torch.stack(parts), False)
    assert torch.equal(tokens, drawn(ours, logits, rows))
    assert scores.isfinite().all()


def test_what_shards_send_is_what_the_twin_sends(ours: Any, device: str) -> None:
    from core.sampling import shards

    wishes = [SamplingParams(temperature=s % 3 / 2, seed=s) for s in range(6)]
    rows = make_rows(wishes, VOCAB, device=device)
    logits = logits_of(6, VOCAB, torch.float32, device)
    logits[0], logits[1, 1200], logits[2, 3] = -math.inf, math.nan, math.inf
    half, found, twin = VOCAB // 2, [], []
    for first, part in ((0, logits[:, :half]), (half, logits[:, half:])):
        where = rows.table.columns, rows.index, rows.positions
        found.append(ours.best_of_shard(part, *where, None, first, part.shape[1]))
        twin.append(shards.best_of(part, rows.temperature, rows.keys, None, first))
    tokens, scores = ours.best_of_all(torch.stack(found))
    wanted, others = shards.best_of_all(torch.stack(twin))
    assert tokens.tolist()[:3] == wanted.tolist()[:3] == [-1, -1, -1]
    assert torch.equal(tokens, wanted)
    assert torch.allclose(scores, others, atol=1e-4)


def test_the_default_sampler_draws_the_same_with_these_kernels(ours: Any, device: str) -> None:
    wishes = accepted(DefaultSampler)
    assert len(wishes) == len(WISHES)
    for seed in range(2 if INTERPRETED else 8):
        logits = normal(len(wishes), device, seed)
        rows = rows_of(wishes, device)
        wanted = ids(DefaultSampler, logits, rows)
        rows = rows_of(wishes, device)
        rows.table.kernels = ours
        assert ids(DefaultSampler, logits, rows) == wanted


def test_greedy_rows_alone_are_drawn_by_the_kernels_too(ours: Any, device: str) -> None:
    rows = make_rows([GREEDY] * 2, VOCAB, device=device)
    rows.table.kernels = ours
    logits = logits_of(2, VOCAB, torch.bfloat16, device)
    assert torch.equal(rows.draw(logits), logits.argmax(-1))


def test_sampling_does_not_wait_and_can_be_captured(ours: Any, device: str) -> None:
    if not device.startswith("cuda"):
        pytest.skip("needs --on cuda")
    wishes = [SamplingParams(temperature=s % 4 / 2, top_k=s, top_p=0.9, seed=s) for s in range(16)]
    rows = make_rows(wishes, VOCAB, device=device)
    logits = logits_of(16, VOCAB, torch.bfloat16, device)
    where = rows.table.columns, rows.index, rows.positions

    def step() -> Tensor:
        return ours.draw(logits, *where, ours.floors(logits, *where[:2]))

    step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    with torch.cuda.stream(torch.cuda.Stream()):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = step()
    for seed in range(5):
        logits.copy_(logits_of(16, VOCAB, torch.bfloat16, device, seed + 1))
        rows.positions.add_(1)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(found, step())
        assert_same_draw(found, logits, rows, floors_by_sorting(logits.float(), rows)
                         .masked_fill(rows.temperature == 0, -math.inf))  # fmt: skip
