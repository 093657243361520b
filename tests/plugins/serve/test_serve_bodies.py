"""Large and tangled bodies are read, or refused, in little time: they stop every stream."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugins.serve.protocol import reading
from plugins.serve.protocol.completions import CompletionRequest
from plugins.serve.protocol.errors import ApiError
from plugins.serve.protocol.reading import parse, read
from plugins.serve.protocol.structured import MOST, wanted_form

HOSTILE = {  # functions, because every process that runs tests imports this
    "lists": lambda: '{"prompt":[' + "[]," * 2_000_000 + "0]}",
    "objects": lambda: '{"prompt":[' + '{"a":1},' * 500_000 + "0]}",
    "fields": lambda: json.dumps({"logit_bias": dict.fromkeys(map(str, range(500_000)), 1)}),
    "unknown fields": lambda: json.dumps(dict.fromkeys(map(str, range(150_000)), 1)),
    "a long name": lambda: '{"' + '\\"[' * 2_000_000 + '":1}',
    "a string without end": lambda: '{"' + "[" * 5_000_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_soon_and_shortly(name: str) -> None:
    body = HOSTILE[name]().encode()
    began = time.thread_time()
    with pytest.raises(ApiError) as caught:
        read(parse(body), CompletionRequest)
    assert time.thread_time() - began < 0.5  # seconds to minutes, if one looked at all of it
    assert len(caught.value.body()) < 5000


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "x" * 10_000_000},
        {"prompt": [1] * 1_000_000},
        {"prompt": '[{:"\\' * 500_000},  # a long text may have as many brackets as it likes
        {"prompt": ["[" * 100] * 10_000},
    ],
    ids=["text", "ids", "text of brackets", "texts of brackets"],
)
def test_what_is_only_long_is_read(body: dict[str, Any]) -> None:
    assert parse(json.dumps(body).encode()) == body


HALF, LARGE, BROKEN = "half a character", "a number that is too large", "not valid JSON"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (r'{"a": "\ud800"}', HALF),
        (r'{"a": ["\ud83dxy"]}', HALF),
        (r'{"a": "\\\ud800"}', HALF),
        (r'{"a": "\ud800", "b": "something else"}', HALF),
        (r'{"a": "\ude00"}', HALF),
        (r'{"\ud800": 1}', HALF),
        (r'{"a": "\ud83d', BROKEN),  # it ends too soon
        (r'{"a": "\\ud800"', BROKEN),
        ('{"a": ' + "9" * 5000 + "}", LARGE),
        ('{"a": [-1e999]}', LARGE),
    ],
)
def test_what_is_json_and_cannot_be_read_is_called_by_its_name(body: str, says: str) -> None:
    with pytest.raises(ApiError, match=says):
        parse(body.encode())


JSON = st.recursive(
    st.integers() | st.text('[]{}:,"\\ \nä', max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text('[{:"\\a', max_size=3), inner)
    ),
    max_leaves=20,
)


def parts(value: Any) -> int:
    """Lists, objects and fields, counted in what was read."""
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(parts, value.values()))
    return 1 + sum(map(parts, value)) if isinstance(value, list) else 0


@given(JSON, st.booleans())
def test_parts_are_counted_as_they_are_read(value: Any, spaced: bool) -> None:
    body = json.dumps({"a": value}, indent=2 if spaced else None).encode()
    count = parts({"a": value})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "MOST_PARTS", count)
        assert not reading._has_too_many_parts(body)
        patch.setattr(reading, "MOST_PARTS", count - 1)
        assert reading._has_too_many_parts(body)


def test_further_mistakes_are_told_to_be_there() -> None:
    with pytest.raises(ApiError) as caught:
        read(dict.fromkeys(map(str, range(100)), 1), CompletionRequest)
    lines = caught.value.message.splitlines()
    assert len(lines) == reading.MOST_MISTAKES + 1
    assert lines[-1] == "There are further mistakes."


def test_a_form_is_bounded_before_the_engine_looks_at_it() -> None:
    form = {"structured_outputs": {"choice": ["x" * MOST]}, "prompt": "a"}
    with pytest.raises(ApiError, match="structured_outputs has 1048591 bytes") as caught:
        wanted_form(read(form, CompletionRequest))
    assert caught.value.param == "structured_outputs"
