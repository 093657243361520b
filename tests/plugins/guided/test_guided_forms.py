"""Expressions, choices and grammars: Python's own `re` and a parser written out say what fits."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core import LLM, SamplingParams
from core.errors import UserError
from core.outputs import CompletionOutput

EXPRESSIONS = (
    r"[a-z]{3,8}",
    r"^[A-Z][a-z]+ [0-9]{4}$",
    r"(yes|no|perhaps)(, (yes|no)){0,2}",
    r"\d{1,3}(\.\d{1,3}){3}",
    r"(a|b){0,4}abb",
    r"[^a-y\n]{1,5}",
    r"ü[äö]{2}ß?",
    r".{0,10}\n.{0,10}",
    r"a?b?c?",
)
EXPRESSION = """
start: sum
sum: term ("+" term){0,3}
term: NUMBER | "(" sum ")"
NUMBER: /[0-9]{1,3}/
"""
GBNF = """
root ::= "[" item ("," item)? "]"
item ::= [a-c] | root
"""


def ask(llm: LLM, form: dict[str, Any], answers: int = 6, **more: Any) -> list[CompletionOutput]:
    params = SamplingParams(
        **{"max_tokens": 150, "seed": 3, "n": answers, "structured_outputs": form, **more}
    )
    return llm.generate(["So:"], params, use_tqdm=False)[0].outputs


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_the_whole_answer_matches(llm: LLM, expression: str) -> None:
    for answer in ask(llm, {"regex": expression}):
        matched = re.fullmatch(expression, answer.text) is not None
        assert answer.error is None
        assert matched or answer.finish_reason == "length", answer.text
    assert any(a.finish_reason == "stop" for a in ask(llm, {"regex": expression}))


TEXTS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8),
    min_size=1, max_size=5,
)  # fmt: skip


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TEXTS)
def test_the_answer_is_one_of_the_choices(wild: LLM, choices: list[str]) -> None:
    for answer in ask(wild, {"choice": choices}, answers=3):
        assert answer.finish_reason == "stop"
        assert bytes_of(wild, answer) in [text.encode() for text in choices]


def bytes_of(llm: LLM, answer: CompletionOutput) -> bytes:
    return b"".join(llm.engine.tokenizer.token_bytes(i) for i in answer.token_ids[:-1])


def test_every_choice_is_possible(wild: LLM) -> None:
    choices = ["apple", "apricot", "banana", "app"]
    answers = ask(wild, {"choice": choices}, answers=60, temperature=50.0)
    assert Counter(a.text for a in answers).keys() == set(choices)


def test_a_grammar_in_larks_notation(llm: LLM) -> None:
    ended = 0
    for answer in ask(llm, {"grammar": EXPRESSION}, answers=12):
        if answer.finish_reason == "stop":
            assert re.fullmatch(r"[0-9+()]+", answer.text)
            eval(re.sub(r"\b0+(?=[0-9])", "", answer.text), {"__builtins__": {}})
            ended += 1
    assert ended


def test_a_grammar_in_gbnf(wild: LLM) -> None:
    ended = [a.text for a in ask(wild, {"grammar": GBNF}, answers=12) if a.finish_reason == "stop"]
    assert ended
    for text in ended:
        while "[" in text:
            shorter = re.sub(r"\[[a-c](,[a-c])?\]", "a", text)
            assert shorter != text
            text = shorter
        assert text == "a"


def test_the_low_level_way_is_the_same(wild: LLM) -> None:
    form = {"regex": "[a-z]{4}"}
    low = SamplingParams(max_tokens=20, seed=5, extra_args={"guided": form})
    high = SamplingParams(max_tokens=20, seed=5, structured_outputs=form)
    answers = [o.outputs[0].token_ids for o in wild.generate(["q", "q"], [low, high])]
    assert answers[0] == answers[1]


def test_tokens_that_are_no_text_stay_outside(wild: LLM) -> None:
    tokenizer = wild.engine.tokenizer
    favoured = {i: 100.0 for i in {*tokenizer.added_ids} - tokenizer.eos_ids} | {300: 100.0}
    for answer in ask(wild, {"regex": r"(.|\n){1,9}"}, answers=4, logit_bias=favoured):
        assert not favoured.keys() & {*answer.token_ids}


def test_a_grammar_may_name_tokens_and_hold_schemas(llm: LLM) -> None:
    tokenizer = llm.engine.tokenizer
    [tag] = {i for i in tokenizer.added_ids if tokenizer.token_text(i) == "<think>"}
    schema = '{"type": "boolean", "description": "x ::= y"}'
    for answer in ask(llm, {"grammar": f'start: <think> %json {schema} <think> "."'}):
        first, *middle, last, point, _end = answer.token_ids
        assert first == last == tag
        assert tokenizer.decode(middle) in ("true", "false")
        assert tokenizer.decode([point]) == "."


def test_a_grammar_that_names_no_token_is_refused(llm: LLM) -> None:
    with pytest.raises(UserError, match="grammar cannot be served"):
        ask(llm, {"grammar": "start: <no_such_token>"})
