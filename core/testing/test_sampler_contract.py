"""What every sampler must do: its draws, its rows, its errors; run for each `--sampler`."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch

from core.interfaces import Sampler
from core.sampling.params import SamplingParams
from core.sampling.static_rows import StaticRows
from core.testing.sampling import (
    GREEDY,
    SIZE,
    WISHES,
    accepted,
    ids,
    made,
    make_rows,
    normal,
    refusals,
    rows_of,
    sampled,
)

Kind = type[Sampler]


def taken(sampler: Kind, *wishes: SamplingParams) -> None:
    """Skip the test, with the reasons, when the sampler refuses one of these requests."""
    if reasons := refusals(sampler, *wishes):
        pytest.skip("; ".join(reasons))


def test_it_serves_ordinary_requests(
    sampler: Kind, device: str, refused: Callable[[list[str]], None]
) -> None:
    reasons = [made(sampler).accepts(wish) for wish in WISHES]
    assert all(isinstance(listed, list) for listed in reasons)
    assert all(isinstance(reason, str) for listed in reasons for reason in listed)
    if reasons[0] and reasons[1]:
        refused([*reasons[0], *reasons[1]])
    wishes = accepted(sampler)
    ids(sampler, normal(len(wishes), device), rows_of(wishes, device))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_greedy_rows_take_the_largest_logit_whatever_their_neighbours_do(
    sampler: Kind, device: str, dtype: torch.dtype
) -> None:
    taken(sampler, GREEDY)
    others = accepted(sampler)
    logits = normal(len(others), device).to(dtype)
    for s in range(len(others)):
        found = ids(sampler, logits, rows_of([*others[:s], GREEDY, *others[s + 1 :]], device))
        assert logits[s, found[s]] == logits[s].max()
    found = ids(sampler, logits, rows_of([GREEDY] * len(others), device))
    assert logits.gather(1, torch.tensor(found, device=device)[:, None]).equal(
        logits.max(-1, keepdim=True).values
    )


@pytest.mark.parametrize("seed", range(3))
def test_a_row_gets_the_same_alone_among_others_and_in_any_order(
    sampler: Kind, device: str, seed: int
) -> None:
    wishes = accepted(sampler)
    logits = normal(len(wishes), device, seed)
    together = ids(sampler, logits, rows_of(wishes, device))
    for s, params in enumerate(wishes):
        alone = ids(sampler, logits[s : s + 1], rows_of([params], device, [s]))
        assert alone == [together[s]], f"alone it gets another token: {params}"
    order = random.Random(seed).sample(range(len(wishes)), len(wishes))
    shuffled = rows_of([wishes[s] for s in order], device, order)
    assert ids(sampler, logits[order], shuffled) == [together[s] for s in order]
    elsewhere = rows_of(wishes, device, spare=9)
    assert ids(sampler, logits, elsewhere) == together, "other rows of the worker, other tokens"


@pytest.mark.parametrize("count", [65, 129, 300])
def test_a_row_of_a_large_step_gets_what_it_gets_in_a_small_one(
    sampler: Kind, device: str, count: int
) -> None:
    wishes = accepted(sampler)
    size, logits = len(wishes), normal(count, device, count)
    at = [s % size for s in range(count)]
    rows = rows_of([wishes[s] for s in at], device, at)
    together = ids(made(sampler, rows=count), logits, rows)
    for first in range(0, count, size):
        part = slice(first, min(first + size, count))
        some = rows_of([wishes[s] for s in at[part]], device, at[part])
        assert ids(sampler, logits[part], some) == together[part], f"rows from {first} on"


def test_every_rank_draws_the_same(sampler: Kind, device: str) -> None:
    """Equal logits and rows give equal ids: in another instance, again, whatever was drawn else."""
    wishes = accepted(sampler)
    logits = normal(len(wishes), device)
    one, other = made(sampler), made(sampler)
    torch.manual_seed(1)
    first = ids(one, logits, rows_of(wishes, device))
    torch.manual_seed(2)
    ids(other, normal(3, device, 5), rows_of(wishes[:1] * 3, device))
    assert ids(other, logits, rows_of(wishes, device)) == first
    assert ids(one, logits, rows_of(wishes, device)) == first


def test_seed_and_position_decide_what_is_drawn(sampler: Kind, device: str) -> None:
    taken(sampler, SamplingParams(seed=5))
    logits = normal(64, device, 2) / 10

    def drawn(seed: int, position: int) -> list[int]:
        params = [SamplingParams(seed=seed)] * 64
        return ids(
            sampler, logits, make_rows(params, SIZE, positions=[position] * 64, device=device)
        )

    first = drawn(5, 3)
    assert drawn(5, 3) == first
    for other in (drawn(6, 3), drawn(5, 4), drawn(5 + 2**32, 3)):
        assert sum(a == b for a, b in zip(first, other, strict=True)) < 16


def test_impossible_tokens_are_never_drawn(sampler: Kind, device: str) -> None:
    logits = torch.full((1, SIZE), -math.inf, device=device)
    logits[0, [3, 40, 299]] = torch.tensor([0.0, -8.0, 1.0], device=device)
    for wish in (GREEDY, SamplingParams(), SamplingParams(temperature=5.0)):
        if not made(sampler).accepts(wish):
            rows = make_rows([wish] * 60, SIZE, device=device)
            assert set(ids(sampler, logits.expand(60, -1), rows)) <= {3, 40, 299}


@pytest.mark.parametrize("fault", ["NaN everywhere", "one NaN", "no possible token"])
def test_a_hopeless_row_is_named_and_the_others_go_on(
    sampler: Kind, device: str, fault: str
) -> None:
    wishes = accepted(sampler)
    good = normal(len(wishes), device)
    wanted = ids(sampler, good, rows_of(wishes, device))
    for s, wish in enumerate(wishes):
        if fault == "one NaN" and (wish.allowed_token_ids or wish.bad_words):
            continue  # they may take that token away
        logits = good.clone()
        if fault == "one NaN":
            logits[s, 5] = math.nan
        else:
            logits[s] = math.nan if fault == "NaN everywhere" else -math.inf
        found = sampled(sampler, logits, rows_of(wishes, device))
        errors = dict(found.errors or {})
        assert list(errors) == [s], (
            f"row {s} has {fault}, so Sampled.errors must be {{{s}: a sentence}}, and is {errors}"
        )
        assert isinstance(errors[s], str)
        kept = [i for i in range(len(wishes)) if i != s]
        assert found.ids[kept].tolist() == [wanted[i] for i in kept]
        assert s not in (found.logprobs or {})


def test_it_leaves_the_history_to_the_worker(sampler: Kind, device: str) -> None:
    wishes = accepted(sampler)
    rows = rows_of(wishes, device)
    before = rows.table.history.clone()
    ids(sampler, normal(len(wishes), device), rows)
    assert torch.equal(rows.table.history, before)


def test_static_rows_get_the_tokens_of_the_steps_own(sampler: Kind, device: str) -> None:
    """What a runner captures: no request is known, columns are read on the device."""
    instance = made(sampler)
    if not instance.graphable:
        pytest.skip("not graphable")
    plain = [SamplingParams(seed=1), GREEDY, SamplingParams(temperature=0.3)]
    taken(sampler, *plain)
    rows, logits = rows_of(plain, device), normal(3, device)
    static = StaticRows(rows.table, 3)
    static.load(rows)
    assert ids(instance, logits, static) == ids(instance, logits, rows)
