"""The built-in processors, with transformers' as oracles."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from core.sampling.params import SamplingParams
from core.sampling.rows import SampleRows
from core.sampling.table import SamplingTable
from core.testing.sampling import make_rows
from plugins.sampling.bad_words import BadWords
from plugins.sampling.masks import AllowedTokens, LogitBias, MinTokens
from plugins.sampling.penalties import Penalties

SIZE = 40


def random_logits(rows: int, device: str = "cpu", seed: int = 0) -> torch.Tensor:
    return (torch.randn(rows, SIZE, generator=torch.Generator().manual_seed(seed)) * 3).to(device)


def rows_of(*params: SamplingParams, **where: object) -> SampleRows:
    return make_rows(params, SIZE, **where)


def worded(*words: list[int]) -> SamplingParams:
    """Parameters whose bad words a tokenizer has spelled already."""
    params = SamplingParams(bad_words=["x"])
    params.bad_words_token_ids = list(words)
    return params


def test_repetition_penalty_is_that_of_transformers(device: str) -> None:
    prompts = [[1, 2, 2, 2], [3], [4, 5]]
    outputs = [[7, 7], [], [4, 9, 9, 10]]
    logits = random_logits(3, device)
    penalties = [1.3, 2.0, 0.5]
    wanted = [
        transformers.RepetitionPenaltyLogitsProcessor(penalty)(
            torch.tensor([prompt + output], device=device), logits[s : s + 1]
        )
        for s, (penalty, prompt, output) in enumerate(zip(penalties, prompts, outputs, strict=True))
    ]
    rows = rows_of(
        *(SamplingParams(repetition_penalty=p) for p in penalties),
        prompts=prompts, outputs=outputs, device=device,
    )  # fmt: skip
    found = Penalties(Penalties.Options())(logits.clone(), rows)
    torch.testing.assert_close(found, torch.cat(wanted))


def test_repetition_counts_once_however_often_a_token_is_there() -> None:
    logits = torch.full((2, SIZE), 2.0)
    logits[:, 5] = -2.0
    params = [SamplingParams(repetition_penalty=2.0)] * 2
    rows = rows_of(*params, prompts=[[4, 5], [4, 4, 5]], outputs=[[4], [4, 4, 5, 5, 5]])
    found = Penalties(Penalties.Options())(logits, rows)
    assert found[:, 4].tolist() == [1, 1]
    assert found[:, 5].tolist() == [-4, -4]
    assert found[:, 6].tolist() == [2, 2]


tokens = st.lists(st.integers(0, SIZE - 1), max_size=12)


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=12),
            tokens,
            st.sampled_from([0.0, 0.5, -1.0, 2.0]),
            st.sampled_from([0.0, 0.25, -0.5]),
            st.sampled_from([1.0, 1.5, 0.5]),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_penalties_count_the_output_alone(cases: list[tuple]) -> None:
    logits = random_logits(len(cases))
    wanted = logits.double()
    for s, (prompt, output, frequency, presence, repetition) in enumerate(cases):
        for token in set(prompt + output):
            x = float(wanted[s, token])
            wanted[s, token] = x / repetition if x > 0 else x * repetition
        for token in set(output):
            wanted[s, token] -= frequency * output.count(token) + presence
    params = [
        SamplingParams(frequency_penalty=f, presence_penalty=p, repetition_penalty=r)
        for _, _, f, p, r in cases
    ]
    rows = rows_of(*params, prompts=[c[0] for c in cases], outputs=[c[1] for c in cases])
    found = Penalties(Penalties.Options())(logits, rows)
    torch.testing.assert_close(found, wanted.float())


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), min_size=1, max_size=5),
    st.lists(st.integers(0, 4), min_size=1, max_size=8),
)
def test_bad_words_are_those_of_transformers(words: list[list[int]], output: list[int]) -> None:
    logits = random_logits(1)
    oracle = transformers.NoBadWordsLogitsProcessor(words, eos_token_id=SIZE - 1)
    wanted = oracle(torch.tensor([[30, *output]]), logits.clone())
    rows = rows_of(worded(*words), prompts=[[30]], outputs=[output])
    assert BadWords(BadWords.Options())(logits, rows).tolist() == wanted.tolist()


def test_bad_words_of_several_rows_and_lengths(device: str) -> None:
    rows = rows_of(
        worded([1, 2, 3], [9]), worded([2, 3], [5, 3], [3, 3]), worded([1, 2, 3, 4]),
        prompts=[[30]] * 3, outputs=[[1, 2], [1, 2], [2, 3]], device=device,
    )  # fmt: skip
    found = BadWords(BadWords.Options())(torch.zeros(3, SIZE, device=device), rows).cpu()
    forbidden = [row.isinf().nonzero()[:, 0].tolist() for row in found]
    assert forbidden == [[3, 9], [3], []]


def test_a_bad_word_costs_its_own_length_and_no_other_one_that_of_the_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row of the longest word's size for each of them would be 10,000,000 numbers here."""
    sizes = []
    send = SamplingTable.send

    def sent(table: SamplingTable, array: np.ndarray) -> torch.Tensor:
        sizes.append(array.size)
        return send(table, array)

    monkeypatch.setattr(SamplingTable, "send", sent)
    long = list(range(SIZE)) * 250
    rows = rows_of(*[worded(long, *([i % SIZE, 3] for i in range(250)))] * 4, outputs=[[1]] * 4)
    found = BadWords(BadWords.Options())(torch.zeros(4, SIZE), rows)
    assert found.isinf().nonzero().tolist() == [[row, 3] for row in range(4)]
    assert max(sizes) <= 4 * (len(long) + 250)


def test_a_bad_word_that_began_in_the_prompt_may_be_completed() -> None:
    rows = rows_of(worded([1, 2]), worded([1, 2]), prompts=[[1], [5]], outputs=[[], [1]])
    found = BadWords(BadWords.Options())(torch.zeros(2, SIZE), rows)
    assert found[:, 2].tolist() == [0, -math.inf]


def test_penalties_in_parts_are_those_of_all_rows(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """A step with one long request must not take the memory of as many long ones."""
    params = [
        SamplingParams(repetition_penalty=1 + s / 4, frequency_penalty=s / 5, presence_penalty=0.5)
        for s in range(5)
    ]
    outputs = [list(range(s, 3 * s)) + [s] * s for s in range(5)]
    where = {"prompts": [[9, 9, 8]] * 5, "outputs": outputs, "device": device}
    wanted = Penalties(Penalties.Options())(random_logits(5, device), rows_of(*params, **where))
    parts = SampleRows.parts
    for most in (1, 20):
        monkeypatch.setattr(SampleRows, "parts", lambda rows, most=most: parts(rows, most))
        found = Penalties(Penalties.Options())(random_logits(5, device), rows_of(*params, **where))
        assert torch.equal(found, wanted)


def test_bias_is_added(device: str) -> None:
    logits = random_logits(2, device)
    rows = rows_of(
        SamplingParams(logit_bias={3: 2.5, 39: -100}), SamplingParams(logit_bias={0: 1}),
        device=device,
    )  # fmt: skip
    found = LogitBias(LogitBias.Options())(logits.clone(), rows) - logits
    wanted = torch.zeros(2, SIZE)
    wanted[0, 3], wanted[0, 39], wanted[1, 0] = 2.5, -100, 1
    torch.testing.assert_close(found.cpu(), wanted)


def test_only_allowed_tokens_stay(device: str) -> None:
    logits = random_logits(2, device)
    rows = rows_of(
        SamplingParams(allowed_token_ids=[4, 4, 1]), SamplingParams(allowed_token_ids=[39]),
        device=device,
    )  # fmt: skip
    found = AllowedTokens(AllowedTokens.Options())(logits, rows)
    assert found.isfinite().nonzero().tolist() == [[0, 1], [0, 4], [1, 39]]
    assert found[0, 4] == logits[0, 4]


@pytest.mark.parametrize(("outputs", "early"), [(0, True), (2, True), (3, False), (4, False)])
def test_no_end_of_text_before_min_tokens(outputs: int, early: bool, device: str) -> None:
    """The oracle: MinNewTokensLength of transformers."""
    logits = random_logits(1, device)
    known = [1, 2, *range(3, 3 + outputs)]
    oracle = transformers.MinNewTokensLengthLogitsProcessor(2, 3, [7, 8], device=device)
    wanted = oracle(torch.tensor([known], device=device), logits.clone())
    rows = rows_of(
        SamplingParams(min_tokens=3), prompts=[[1, 2]], outputs=[known[2:]], stop_ids=[7, 8],
        device=device,
    )  # fmt: skip
    found = MinTokens(MinTokens.Options())(logits.clone(), rows)
    assert found.tolist() == wanted.tolist()
    assert bool(found[0, 7].isinf()) is early


def test_min_tokens_counts_each_row_for_itself_and_again_each_step() -> None:
    rows = rows_of(
        *(SamplingParams(min_tokens=n) for n in (1, 2, 3)), prompts=[[1]] * 3, stop_ids=[7]
    )
    processor = MinTokens(MinTokens.Options())
    for step in range(4):
        now = rows.table.select(rows.rows, rows.ends + step)
        found = processor(torch.zeros(3, SIZE), now)
        assert found[:, 7].isinf().tolist() == [step < n for n in (1, 2, 3)]
        assert int(found.isinf().sum()) == sum(step < n for n in (1, 2, 3))
