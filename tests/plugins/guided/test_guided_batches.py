"""Guided rows among free ones: overlapped, preempted, cut over ranks, always the same tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core import LLM, SamplingParams
from tests.plugins.guided.conftest import start

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}
FORMS: list[dict[str, Any] | None] = [
    {"json": SCHEMA},
    None,
    {"regex": "[a-f0-9]{8}-[a-f0-9]{4}"},
    None,
    {"choice": ["first", "second", "third"]},
    {"grammar": 'start: "<" word ("," word)* ">"\nword: /[a-z]{1,4}/'},
    None,
]
PROMPTS = [f"Number {number}: once upon a time" for number in range(len(FORMS))]
PARAMS = [
    SamplingParams(
        max_tokens=70,
        seed=11 + number,
        temperature=0.0 if number in (1, 2) else 0.9,
        top_p=0.95 if number == 3 else 1.0,
        logprobs=2 if number in (0, 3) else None,
        structured_outputs=form,
    )
    for number, form in enumerate(FORMS)
]


def answers(llm: LLM, picks: list[int] | None = None) -> list[tuple[list[int], Any, Any]]:
    picks = list(range(len(FORMS))) if picks is None else picks
    found = llm.generate(
        [PROMPTS[i] for i in picks], [PARAMS[i] for i in picks], use_tqdm=False
    )  # fmt: skip
    return [(o.outputs[0].token_ids, o.outputs[0].finish_reason, logprobs(o)) for o in found]


def logprobs(output: Any) -> list[float]:
    listed = output.outputs[0].logprobs or []
    return [entry.logprob for position in listed for entry in position.values()]


def tokens(found: list[tuple[list[int], Any, Any]]) -> list[tuple[list[int], Any]]:
    return [(ids, reason) for ids, reason, _ in found]


@pytest.fixture(scope="module")
def expected(wild: LLM) -> list[tuple[list[int], Any, Any]]:
    found = answers(wild)
    assert [reason for _, reason, _ in found].count("stop") >= 3
    return found


def test_alone_or_in_company_is_the_same(wild: LLM, expected: Any) -> None:
    for number, form in enumerate(FORMS):
        (alone,) = answers(wild, [number])
        assert tokens([alone]) == tokens([expected[number]]), form


def test_free_rows_do_not_notice_guided_ones(wild: LLM) -> None:
    """To the bit: the log probabilities, too. The batch has the same shape both times."""
    free = [i for i, form in enumerate(FORMS) if form is None]
    plain = [p.clone() for p in PARAMS]
    for params in plain:
        params.structured_outputs = None
        params.max_tokens, params.logprobs, params.ignore_eos = 6, 3, True
    guided = [p.clone() for p in plain]
    for number, form in enumerate(FORMS):
        if form is not None:
            guided[number].ignore_eos = False
            guided[number].structured_outputs = {"regex": "[a-z]{40}"}
    ways = [wild.generate(PROMPTS, params, use_tqdm=False) for params in (plain, guided)]
    for number in free:
        one, other = (way[number].outputs[0] for way in ways)
        assert one.token_ids == other.token_ids
        assert logprobs(ways[0][number]) == logprobs(ways[1][number])
    assert ways[0][0].outputs[0].token_ids != ways[1][0].outputs[0].token_ids


@pytest.mark.parametrize("overlap", ["on", "off"])
def test_overlapped_steps_give_the_same(byte_checkpoint: Path, expected: Any, overlap: str) -> None:
    executor = {"use": "local", "threads": 1, "overlap": overlap}
    with start(byte_checkpoint, executor=executor) as llm:
        assert answers(llm) == expected


def test_preempted_answers_go_on_in_their_form(byte_checkpoint: Path, expected: Any) -> None:
    cache = {"page_size": 4, "pages": 70, "check": True}
    with start(byte_checkpoint, cache=cache, scheduler={"watermark": 0.0}) as llm:
        found = answers(llm)
        assert llm.engine.statistics()["preemptions"] > 0
    assert tokens(found) == tokens(expected)


def test_small_steps_and_chunked_prompts_give_the_same(
    byte_checkpoint: Path, expected: Any
) -> None:
    scheduler = {"max_num_batched_tokens": 9, "max_num_seqs": 4}
    with start(byte_checkpoint, scheduler=scheduler) as llm:
        assert tokens(answers(llm)) == tokens(expected)


def test_two_ranks_give_the_same(byte_checkpoint: Path, expected: Any) -> None:
    with start(byte_checkpoint, tensor_parallel_size=2) as llm:
        assert tokens(answers(llm)) == tokens(expected)


def test_each_of_n_answers_has_its_own_way(wild: LLM) -> None:
    params = SamplingParams(
        n=8, max_tokens=40, seed=2, temperature=1.5, structured_outputs={"regex": "[a-z]{6}"}
    )
    found = wild.generate(["Words:"], params, use_tqdm=False)[0].outputs
    assert len({answer.text for answer in found}) > 1
    assert all(len(answer.text) == 6 and answer.finish_reason == "stop" for answer in found)


def test_a_stream_comes_in_pieces(wild: LLM) -> None:
    params = SamplingParams(max_tokens=40, seed=2, structured_outputs={"regex": "[a-z]{6}"})
    pieces = [output.outputs[0].delta for output in wild.stream("Words:", params)]
    assert len(pieces) > 3
    assert len("".join(pieces)) == 6
