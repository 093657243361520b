"""Whatever the schema and the model, an answer that has ended is JSON, and valid."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

import jsonschema
import pytest

from core import LLM, SamplingParams
from core.outputs import CompletionOutput
from tests.plugins.guided.random_schemas import random_schema

SCHEMAS = 60


def ask(llm: LLM, forms: list[dict[str, Any]], tokens: int = 400) -> list[CompletionOutput]:
    prompts = [f"Answer {number} is" for number in range(len(forms))]
    params = [
        SamplingParams(max_tokens=tokens, seed=number, structured_outputs=form)
        for number, form in enumerate(forms)
    ]
    return [output.outputs[0] for output in llm.generate(prompts, params, use_tqdm=False)]


@pytest.mark.parametrize("compact", [True, False])
def test_answers_are_valid(llm: LLM, compact: bool) -> None:
    random = Random(7 + compact)
    schemas = [random_schema(random) for _ in range(SCHEMAS)]
    # one that cannot be served is refused, and that is all that may happen to it
    forms = [{"json": schema, "disable_any_whitespace": compact} for schema in schemas]
    ended = 0
    for schema, answer in zip(schemas, ask(llm, forms), strict=True):
        assert answer.finish_reason in ("stop", "length"), (schema, answer.error)
        if answer.finish_reason == "stop":
            jsonschema.validate(json.loads(answer.text), schema)
            assert not compact or answer.text == answer.text.strip()
            ended += 1
    assert ended >= SCHEMAS * 0.9


def test_any_object_is_an_object(llm: LLM) -> None:
    answers = ask(llm, [{"json_object": True}] * 8, tokens=150)
    found = [json.loads(a.text) for a in answers if a.finish_reason == "stop"]
    assert found
    assert all(isinstance(value, dict) for value in found)


def test_a_schema_may_be_text_and_name_itself(llm: LLM) -> None:
    schema = {
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {
                    "leaf": {"type": "integer", "minimum": 0, "maximum": 9},
                    "more": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
                },
                "required": ["leaf"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/tree",
    }
    answers = ask(llm, [{"json": json.dumps(schema)}] * 10)
    ended = [a for a in answers if a.finish_reason == "stop"]
    assert len(ended) > 5
    for answer in ended:
        jsonschema.validate(json.loads(answer.text), schema)


def test_other_properties_can_be_forbidden(wild: LLM) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}}
    forms = [{"json": schema, "disable_additional_properties": True}] * 20
    for answer in ask(wild, forms):
        assert answer.finish_reason == "stop"
        assert set(json.loads(answer.text)) <= {"a"}


def test_white_space_is_what_the_request_says(wild: LLM) -> None:
    schema = {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}
    (blank,) = wild.engine.tokenizer.encode("~")
    params = SamplingParams(
        max_tokens=100, seed=1, logit_bias={blank: 95.0},
        structured_outputs={"json": schema, "whitespace_pattern": "~{1,2}"},
    )  # fmt: skip
    (output,) = wild.generate(["x"], params, use_tqdm=False)
    text = output.outputs[0].text
    assert re.fullmatch(r"\[~~\w+~~,~~\w+~~\]", text), text
    assert len(json.loads(text.replace("~", ""))) == 2


def test_white_space_never_goes_on_for_ever(wild: LLM) -> None:
    bias = {wild.engine.tokenizer.encode(text)[0]: 90.0 for text in (" ", "\n", "\t")}
    params = SamplingParams(
        max_tokens=400, temperature=0, logit_bias=bias,
        structured_outputs={"json": {"type": "array", "items": False}},
    )  # fmt: skip
    (output,) = wild.generate(["x"], params, use_tqdm=False)
    assert output.outputs[0].finish_reason == "stop"
    assert json.loads(output.outputs[0].text) == []
