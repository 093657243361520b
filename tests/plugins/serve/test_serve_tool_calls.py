"""Calls of tools are found in text, whole or as it arrives, and nothing else is taken for one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugins.serve.text.json_scan import ObjectScanner
from plugins.serve.text.tool_calls import ToolCallParser

TAGS = ("<tool_call>", "</tool_call>")
WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
TIME = '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'


def parse(parts: list[str], live: bool) -> tuple[str, list[tuple[str, str]]]:
    """-> the text, and the calls as (name, arguments)."""
    parser = ToolCallParser(TAGS, live=live)
    text, calls = "", []
    for found in [*(parser.push(part) for part in parts), parser.finish()]:
        for piece, call, name in found:
            if call is None:
                text += piece
            elif name is not None:
                assert call == len(calls)
                calls.append((name, piece))
            else:
                calls[call] = (calls[call][0], calls[call][1] + piece)
    assert parser.calls == len(calls)
    return text, calls


BOTH = pytest.mark.parametrize("live", [True, False])


@BOTH
@pytest.mark.parametrize(
    ("text", "said", "calls"),
    [
        (WEATHER, "", [("weather", '{"city": "Köln"}')]),
        (
            f"I look.\n{WEATHER}\n{TIME}\n",
            "I look.",
            [("weather", '{"city": "Köln"}'), ("time", "{}")],
        ),
        (f"{TIME}\nDone.", "Done.", [("time", "{}")]),
        (
            '<tool_call>{"arguments": {"a": [1, 2]}, "name": "f"}</tool_call>',
            "",
            [("f", '{"a": [1, 2]}')],
        ),
        (
            '<tool_call>{"name":"f","arguments":{"a":"</tool_call>"}}</tool_call>',
            "",
            [("f", '{"a":"</tool_call>"}')],
        ),
        ('<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
        (
            '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
            "",
            [("f", '{"a": 1}')],
        ),
        ('<tool_call>{"name": "f", "arguments": {}}}</tool_call>x', "x", [("f", "{}")]),
    ],
)
def test_calls_are_found(text: str, said: str, calls: list[tuple[str, str]], live: bool) -> None:
    assert parse([text], live) == (said, calls)
    assert parse(list(text), live) == (said, calls)


@BOTH
@pytest.mark.parametrize(
    "text",
    [
        "  no calls \n",
        "<tool_call>weather(city)</tool_call>",
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        "<tool_call>",
        "<tool_call>[1]</tool_call> and <tool",
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
    ],
)
def test_what_is_no_call_is_text(text: str, live: bool) -> None:
    assert parse([text], live) == (text, [])
    assert parse(list(text), live) == (text, [])


def test_arguments_that_are_no_json_are_text() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": 1,,}}</tool_call>'
    assert parse([text], live=False) == (text, [])


def test_a_stream_ends_a_call_where_it_stops_being_json() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": 1,,}}</tool_call>'
    said, calls = parse(list(text), live=True)
    assert calls == [("f", '{"a": 1,')]
    assert said == ",}}</tool_call>"


@BOTH
def test_a_call_that_is_cut_off_keeps_what_it_has(live: bool) -> None:
    assert parse(['<tool_call>{"name": "f", "arguments": {"a": "b'], live) == (
        "",
        [("f", '{"a": "b')],
    )


def test_arguments_come_as_they_are_written() -> None:
    parser = ToolCallParser(TAGS, live=True)
    assert parser.push('Hm. <tool_call>{"name": "f", "argum') == [("Hm.", None, None)]
    assert parser.push('ents": {"a"') == [("", 0, "f"), ('{"a"', 0, None)]
    assert parser.push(': "x') == [(': "x', 0, None)]
    assert parser.ended == 0
    assert parser.push('"}}</tool_call>') == [('"}', 0, None)]
    assert parser.ended == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
OBJECTS = st.dictionaries(st.text(), JSON, max_size=4)


@given(
    st.lists(st.tuples(st.text("ab_", min_size=1), OBJECTS), max_size=3), st.data(), st.booleans()
)
def test_calls_survive_any_division(
    wanted: list[tuple[str, dict[str, Any]]], data: st.DataObject, live: bool
) -> None:
    bodies = [json.dumps({"name": n, "arguments": a}, ensure_ascii=False) for n, a in wanted]
    text = "Text.\n" + "\n".join(f"<tool_call>\n{b}\n</tool_call>" for b in bodies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    said, calls = parse(parts, live)
    assert said == ("Text." if wanted else "Text.\n")
    assert [(name, json.loads(arguments)) for name, arguments in calls] == wanted


@given(st.text() | st.text('{}[]",:01e+-.tfn\\u \n'))
def test_the_scanner_takes_what_the_standard_library_takes(text: str) -> None:
    scanner = ObjectScanner()
    taken = sum(scanner.feed(character) for character in text)
    try:
        value = json.loads(text, parse_constant=lambda name: 1 / 0)
    except (ValueError, ZeroDivisionError):
        value = None
    if isinstance(value, dict) and not text[0].isspace():
        assert scanner.done
        assert text[taken:].strip() == ""
    elif scanner.done:
        assert isinstance(json.loads(text[:taken]), dict)


@given(OBJECTS, st.booleans())
def test_the_scanner_ends_where_the_object_does(value: dict[str, Any], ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii, indent=1)
    scanner = ObjectScanner()
    assert scanner.feed(text + "}x") == len(text)
    assert scanner.done
    assert not scanner.broken
