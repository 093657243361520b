"""The table of parameters, and the rows of it that a step samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from core.sampling import columns, noise
from core.sampling.params import SamplingParams
from core.sampling.rows import SampleRows
from core.sampling.table import SamplingTable
from core.testing.sampling import make_rows
from core.types import Admission

MIXED = [
    SamplingParams(temperature=0),
    SamplingParams(temperature=0.5, top_p=0.9, seed=7, extra_args={"floor": 0.25}),
    SamplingParams(top_k=3, frequency_penalty=0.5),
    SamplingParams(temperature=0, top_k=5, logprobs=2, min_tokens=1),
]


def admission(row: int, params: SamplingParams, seed: int = 0) -> Admission:
    return Admission(row, f"r{row}", np.array([1], np.int32), 1, params, seed, frozenset())


def test_columns_hold_the_parameters_of_each_row(device: str) -> None:
    rows = make_rows(MIXED, 50, prompts=[[1], [1, 2], [3], [4, 5, 6]], device=device)
    assert rows.temperature.tolist() == [0, 0.5, 1, 0]
    assert rows.column("top_k").tolist() == [0, 0, 3, 5]
    assert rows.column("top_p").tolist() == pytest.approx([1, 0.9, 1, 1])
    assert rows.column("frequency_penalty").tolist() == [0, 0, 0.5, 0]
    assert rows.prompt_lengths.tolist() == [1, 2, 1, 3]
    assert rows.positions.tolist() == [1, 2, 1, 3]
    assert rows.params == MIXED
    assert [a.request_id for a in rows.admissions] == [f"request-{s}" for s in range(4)]


def test_needs_say_what_a_step_must_do() -> None:
    def needs(*params: SamplingParams) -> int:
        return make_rows(params, 50).needs

    assert needs(SamplingParams(temperature=0)) == 0
    # a greedy row is not truncated: the best token always stays
    assert needs(SamplingParams(temperature=0, top_k=5, top_p=0.5, min_p=0.1)) == 0
    assert needs(SamplingParams()) == columns.RANDOM
    assert needs(SamplingParams(min_p=0.1)) == columns.RANDOM | columns.MIN_P
    assert needs(SamplingParams(temperature=0, logprobs=0)) == columns.LOGPROBS
    assert needs(SamplingParams(temperature=0, repetition_penalty=1.1)) == columns.PENALTY
    for other in (
        {"logit_bias": {1: 1.0}},
        {"bad_words": ["x"]},
        {"allowed_token_ids": [1]},
        {"min_tokens": 1},
    ):
        assert needs(SamplingParams(temperature=0, **other)) == columns.OTHER
    for plugged in ({"extra_args": {"a": 1}}, {"structured_outputs": {"choice": ["a"]}}):
        wanted = columns.OTHER | columns.HOST
        assert needs(SamplingParams(temperature=0, **plugged)) == wanted
    assert needs(*MIXED) == sum(
        (columns.RANDOM, columns.TOP_K, columns.TOP_P, columns.PENALTY, columns.LOGPROBS,
         columns.OTHER, columns.HOST)
    )  # fmt: skip
    assert make_rows([MIXED[0], SamplingParams()], 50).plain
    assert not make_rows(MIXED, 50).plain
    assert make_rows([MIXED[0], MIXED[3]], 50).all_greedy


def test_keys_depend_on_seed_and_position_alone(device: str) -> None:
    params = [SamplingParams(seed=s) for s in (5, 5, 2**63)]
    keys = make_rows(params, 50, positions=[3, 4, 3], device=device).keys.cpu()
    streams = torch.tensor([noise.stream(s) for s in (5, 5, 2**63)], dtype=torch.int32)
    assert keys.tolist() == noise.keys(streams, torch.tensor([3, 4, 3])).tolist()
    assert len({tuple(key) for key in keys.tolist()}) == 3


def test_the_same_rows_in_the_next_step_are_asked_only_once() -> None:
    rows = make_rows(MIXED, 50)
    asked = []

    def wanted(params: SamplingParams) -> bool:
        asked.append(params)
        return params.top_k > 0

    rows.where(wanted)
    later = rows.table.select(rows.rows, rows.ends + 1)
    assert len(later.where(wanted)) == 2
    assert len(asked) == len(MIXED)
    assert later.positions.tolist() == [e + 1 for e in rows.positions.tolist()]
    assert later.where(wanted).positions.tolist() == later.positions[2:].tolist()


def test_a_new_request_in_an_old_row_is_not_taken_for_the_old_one() -> None:
    table = SamplingTable(2, 50, 8, "cpu")
    both, at = np.array([0, 1], np.int32), np.array([1, 1])
    table.admit([admission(0, SamplingParams(temperature=0.25)), admission(1, SamplingParams())])
    assert table.select(both, at).temperature.tolist() == [0.25, 1]
    table.release(np.array([0], np.int32))
    table.admit([admission(0, SamplingParams(temperature=0, top_k=2))])
    rows = table.select(both, at)
    assert rows.temperature.tolist() == [0, 1]
    assert rows.params[0].top_k == 2


def test_other_rows_or_another_order_are_not_taken_for_the_same() -> None:
    rows = make_rows(MIXED, 50)
    table, numbers = rows.table, rows.rows
    assert table.select(numbers[::-1], rows.ends[::-1]).temperature.tolist() == [0, 1, 0.5, 0]
    assert table.select(numbers[1:3], rows.ends[1:3]).temperature.tolist() == [0.5, 1]


def test_the_caller_may_reuse_its_arrays() -> None:
    table = SamplingTable(2, 50, 8, "cpu")
    table.admit([admission(0, SamplingParams(temperature=0.25)), admission(1, SamplingParams())])
    numbers, at = np.array([0], np.int32), np.array([1])
    rows = table.select(numbers, at)
    numbers[0], at[0] = 1, 9
    assert rows.positions.tolist() == [1]
    assert rows.temperature.tolist() == [0.25]
    assert table.select(numbers, at).temperature.tolist() == [1]


def test_parts_take_and_put_their_logits(device: str) -> None:
    rows = make_rows(MIXED, 5, device=device)
    logits = torch.arange(20.0, device=device).view(4, 5)
    part = rows.subset([1, 3])
    assert part.take(logits).tolist() == logits[[1, 3]].tolist()
    part.put(logits, torch.zeros(2, 5, device=device))
    assert logits.sum(-1).tolist() == [10, 0, 60, 0]
    assert part.temperature.tolist() == [0.5, 0]
    assert part.params == [MIXED[1], MIXED[3]]


def test_a_part_of_a_part_counts_within_that_part() -> None:
    rows = make_rows(MIXED, 5)
    part = rows.subset([1, 2, 3])
    inner = part.where(lambda p: p.top_k > 0)
    logits = torch.arange(15.0).view(3, 5)
    assert inner.take(logits).tolist() == logits[[1, 2]].tolist()
    assert inner.params == MIXED[2:]


def test_all_of_a_part_are_that_part() -> None:
    part = make_rows(MIXED, 5).subset([2, 3])
    every = part.where(lambda p: True)
    logits = torch.arange(10.0).view(2, 5)
    assert every.take(logits) is logits
    assert every.put(logits, logits + 1).tolist() == (logits + 1).tolist()
    assert not part.where(lambda p: False)


def test_rows_that_need_something() -> None:
    rows = make_rows(MIXED, 5)
    assert rows.needing(columns.TRUNCATION).params == MIXED[1:3]
    assert rows.needing(columns.LOGPROBS).params == MIXED[3:]
    assert len(rows.needing(columns.MIN_P)) == 0


def test_extra_args_become_a_column(device: str) -> None:
    rows = make_rows(MIXED, 5, device=device)
    assert rows.extra("floor", -1.0).tolist() == [-1, 0.25, -1, -1]


def test_history_is_padded_and_knows_the_output(device: str) -> None:
    rows = make_rows(
        [SamplingParams()] * 3, 50, prompts=[[5, 6], [7], [8]], outputs=[[], [1, 2, 3], [4]],
        device=device,
    )  # fmt: skip
    tokens, known, output = rows.history()
    assert tokens.tolist() == [[5, 6, 5, 5], [7, 1, 2, 3], [8, 4, 8, 8]]
    assert known.long().sum(-1).tolist() == [2, 4, 2]
    assert tokens[output].tolist() == [1, 2, 3, 4]
    assert rows.history(slice(2, 3)).tokens.tolist() == [[8, 4]]
    assert rows.tokens(1).tolist() == [7, 1, 2, 3]


@pytest.mark.parametrize(("most", "sizes"), [(1, [1, 1, 1]), (8, [2, 1]), (11, [2, 1]), (12, [3])])
def test_parts_bound_the_places_of_a_history(most: int, sizes: list[int], device: str) -> None:
    rows = make_rows([SamplingParams()] * 3, 50, prompts=[[5, 6], [7] * 4, [8]], device=device)
    found = rows.parts(most)
    assert [len(rows.history(part).tokens) for part in found] == sizes
    assert all(rows.history(part).tokens.numel() <= max(most, 4) for part in found)
    assert [s for part in found for s in range(3)[part]] == [0, 1, 2]


def test_recorded_ids_are_the_next_history(device: str) -> None:
    rows = make_rows([SamplingParams()] * 2, 50, prompts=[[5, 6], [7]], device=device)
    rows.record(torch.tensor([30, 31], device=device))
    later = rows.table.select(rows.rows, rows.ends + 1)
    assert [later.tokens(s).tolist() for s in range(2)] == [[5, 6, 30], [7, 31]]


def test_an_id_below_0_is_recorded_as_a_token_that_there_is(device: str) -> None:
    """The step behind may read it before its request is ended."""
    rows = make_rows([SamplingParams()] * 2, 50, prompts=[[5], [7]], device=device)
    rows.record(torch.tensor([-1, 31], dtype=torch.int32, device=device))
    later = rows.table.select(rows.rows, rows.ends + 1)
    assert [later.tokens(s).tolist() for s in range(2)] == [[5, 0], [7, 31]]


def test_draw_is_greedy_where_the_temperature_is_0(device: str) -> None:
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(1)).to(device)
    rows = make_rows(MIXED, 50, device=device)
    drawn = rows.draw(logits).tolist()
    assert drawn[0] == int(logits[0].argmax())
    assert drawn[3] == int(logits[3].argmax())


def test_no_rows_at_all() -> None:
    table = SamplingTable(2, 50, 8, "cpu")
    rows = table.select(np.zeros(0, np.int32), np.zeros(0, np.int32))
    assert isinstance(rows, SampleRows)
    assert (len(rows), rows.needs, rows.params) == (0, 0, [])
