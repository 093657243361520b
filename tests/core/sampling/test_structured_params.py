"""The form of an answer: what may be said, and which mistakes are told."""

from __future__ import annotations

import pytest

from core import SamplingParams, StructuredOutputsParams, UserError

SCHEMA = {"type": "object"}


def mistake(**form: object) -> str:
    with pytest.raises(UserError) as told:
        SamplingParams(structured_outputs=form)
    return str(told.value)


def test_a_mapping_means_the_same_as_the_class() -> None:
    form = StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True)
    asked = SamplingParams(structured_outputs={"json": SCHEMA, "disable_any_whitespace": True})
    assert asked.structured_outputs == form
    assert asked.clone().structured_outputs == form
    assert "structured_outputs" in asked.given


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        ({"json": SCHEMA}, "json"),
        ({"json": '{"type": "object"}'}, "json"),
        ({"regex": "a+"}, "regex"),
        ({"choice": ("a", "b")}, "choice"),
        ({"grammar": "start: x"}, "grammar"),
        ({"json_object": True, "whitespace_pattern": " ?"}, "json_object"),
    ],
)
def test_each_kind_is_taken(form: dict[str, object], kind: str) -> None:
    asked = SamplingParams(structured_outputs=form)
    assert asked.structured_outputs.kind == kind
    assert repr(asked.structured_outputs).startswith(f"StructuredOutputsParams({kind}=")


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({}, "none of json"),
        ({"json": SCHEMA, "regex": "a"}, "json and regex each fix"),
        ({"json": "{"}, "no JSON"),
        ({"json": "[" * 100_000}, "no JSON"),
        ({"json": [1]}, "must be a JSON schema"),
        ({"regex": ""}, "regex must be text"),
        ({"choice": []}, "choice must be a list"),
        ({"choice": "yes"}, "choice must be a list"),
        ({"choice": ["a", 1]}, "choice must be a list"),
        ({"json_object": False}, "json_object must be True"),
        ({"regex": "a", "disable_any_whitespace": True}, "belongs to json"),
        ({"jsn": SCHEMA}, "Did you mean 'json'"),
        ({"structural_tag": "{}"}, "structural_tag is not supported"),
    ],
)
def test_mistakes_are_told(form: dict[str, object], words: str) -> None:
    text = mistake(**form)
    assert "structured_outputs is" in text
    assert words in text


def test_a_mistake_of_the_class_is_told_where_it_is_made() -> None:
    with pytest.raises(UserError, match="regex and choice each fix"):
        StructuredOutputsParams(regex="a", choice=["b"])


def test_the_former_name_leads_to_the_present_one() -> None:
    with pytest.raises(UserError, match="structured_outputs"):
        SamplingParams(guided_decoding={"json": SCHEMA})
