"""Calls of tools in chats on a stand-in for an engine, whole and streamed, free and demanded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from core.text import Tokenizer
from tests.plugins.serve.chatting import deltas, whole
from tests.plugins.serve.running import Running

TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("weather", "time")
]
CALLS = (
    'I look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
)


def test_calls_are_told_apart(fake: Running, say: Any) -> None:
    say(CALLS)
    [choice] = whole(fake, tools=TOOLS)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "I look."
    calls = choice["message"]["tool_calls"]
    assert [call["function"] for call in calls] == [
        {"name": "weather", "arguments": '{"city": "Köln"}'},
        {"name": "time", "arguments": "{}"},
    ]
    assert {call["type"] for call in calls} == {"function"}
    assert len({call["id"] for call in calls}) == 2


def test_calls_are_streamed_as_they_are_written(fake: Running, say: Any) -> None:
    say(CALLS)
    found: dict[int, list[Any]] = {}
    text = ""
    for delta in deltas(fake, tools=TOOLS):
        text += delta.get("content") or ""
        for call in delta.get("tool_calls", ()):
            found.setdefault(call["index"], []).append(call)
    assert text == "I look."
    weather, time = found[0], found[1]
    assert weather[0]["function"]["name"] == "weather"
    assert weather[0]["id"].startswith("call_")
    assert not any("id" in call or "name" in call["function"] for call in weather[1:])
    assert "".join(c["function"].get("arguments", "") for c in weather) == '{"city": "Köln"}'
    assert len(weather) > 10  # a token at a time
    assert "".join(c["function"].get("arguments", "") for c in time) == "{}"


def test_thoughts_and_calls_go_together(fake: Running, say: Any) -> None:
    say("<think>\nI call <tool_call> now.\n</think>\n\n" + CALLS)
    message = whole(fake, tools=TOOLS)["choices"][0]["message"]
    assert message["reasoning_content"] == "I call <tool_call> now."
    assert message["content"] == "I look."
    assert len(message["tool_calls"]) == 2


@pytest.mark.parametrize("body", [{}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": []}])
def test_without_tools_a_call_is_text(fake: Running, say: Any, body: Any) -> None:
    say(CALLS)
    [choice] = whole(fake, **body)["choices"]
    assert choice["message"]["content"] == CALLS
    assert choice["finish_reason"] == "stop"
    assert "".join(part.get("content", "") for part in deltas(fake, **body)) == CALLS


def test_a_malformed_call_is_text(fake: Running, say: Any) -> None:
    say("<tool_call>\nweather(Köln)\n</tool_call>")
    [choice] = whole(fake, tools=TOOLS)["choices"]
    assert choice["message"]["content"] == "<tool_call>\nweather(Köln)\n</tool_call>"
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [True, False])
def test_one_call_ends_the_answer_where_one_is_wanted(
    fake: Running, say: Any, stream: bool
) -> None:
    say(CALLS)
    body: Any = {"tools": TOOLS, "parallel_tool_calls": False}
    if stream:
        assert {c["index"] for d in deltas(fake, **body) for c in d.get("tool_calls", ())} == {0}
    else:
        [choice] = whole(fake, **body)["choices"]
        assert len(choice["message"]["tool_calls"]) == 1
        assert choice["finish_reason"] == "tool_calls"
    assert fake.engine.asked[-1].cancelled[0] == 0  # the engine need not go on


@pytest.fixture(params=[True, False], ids=["held", "free"])
def held(fake: Running, request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether the sampler can hold answers to a form."""
    serving = fake.app.state.serving
    before, serving.holds_forms = serving.holds_forms, request.param
    yield request.param
    serving.holds_forms = before


@pytest.mark.parametrize("stream", [True, False])
def test_a_named_tool_is_called(
    fake: Running, tokenizer: Tokenizer, say: Any, stream: bool, held: bool
) -> None:
    say('{"zone": 1}' if held else ' {"zone": 1}}\n</tool_call> and more')
    choice: Any = {"type": "function", "function": {"name": "time"}}
    if stream:
        calls = [c for d in deltas(fake, tools=TOOLS, tool_choice=choice)
                 for c in d.get("tool_calls", ())]  # fmt: skip
        assert calls[0]["function"]["name"] == "time"
        assert "".join(c["function"].get("arguments", "") for c in calls) == '{"zone": 1}'
    else:
        [found] = whole(fake, tools=TOOLS, tool_choice=choice)["choices"]
        [call] = found["message"]["tool_calls"]
        assert call["function"] == {"name": "time", "arguments": '{"zone": 1}'}
        assert found["message"]["content"] is None
        assert found["finish_reason"] == "tool_calls"
    asked = fake.engine.asked[-1]
    prompt = tokenizer.decode(asked.ids, skip_special_tokens=False)
    front = '</think>\n\n<tool_call>\n{"name": "time", "arguments":'
    assert prompt.endswith(front + " " * held)
    form = asked.params.structured_outputs
    assert (form.json if form else None) == ({"type": "object"} if held else None)


def test_some_tool_is_called_where_one_is_required(fake: Running, say: Any) -> None:
    say('{"name": "weather", "arguments": {}}\n</tool_call>\n' + CALLS)
    [choice] = whole(fake, tools=TOOLS, tool_choice="required")["choices"]
    names = [call["function"]["name"] for call in choice["message"]["tool_calls"]]
    assert names == ["weather", "weather", "time"]


def test_a_required_call_is_held_to_the_tools(fake: Running, say: Any, held: bool) -> None:
    say('{"name": "weather", "arguments": {}}')
    [choice] = whole(fake, tools=TOOLS, tool_choice="required")["choices"]
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "weather"
    form = fake.engine.asked[-1].params.structured_outputs
    if not held:
        assert form is None
        return
    for name in ("weather", "time"):
        assert json.dumps(f'{{"name": "{name}", "arguments": ') in form.grammar
