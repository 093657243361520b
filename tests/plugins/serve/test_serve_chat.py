"""`/v1/chat/completions` on a stand-in for an engine: thoughts, calls, events, fields."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from core.text import Tokenizer
from plugins.serve.protocol.chat_answers import ChatChunk, ChatCompletion
from tests.plugins.serve.running import Running
from tests.tiny import END_OF_TEXT, IM_END

PATH = "/v1/chat/completions"
HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("weather", "time")
]
CALLS = (
    'I look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
)


@pytest.fixture
def say(fake: Running, tokenizer: Tokenizer) -> Any:
    """Let the model say a text, and end."""

    def say(text: str) -> None:
        ids = [*tokenizer.encode(text), IM_END]
        fake.engine.answer = lambda prompt, params, index: ids

    return say


def whole(fake: Running, **body: Any) -> Any:
    answer = fake.post(PATH, {"messages": HELLO, **body})
    assert answer.status_code == 200, answer.text
    msgspec.json.decode(answer.content, type=ChatCompletion)  # nothing is missing or too much
    return answer.json()


def streamed(fake: Running, **body: Any) -> list[Any]:
    events = fake.events(PATH, {"messages": HELLO, **body})
    for event in events:
        msgspec.json.decode(event, type=ChatChunk)
    return [json.loads(event) for event in events]


def deltas(fake: Running, **body: Any) -> list[Any]:
    return [event["choices"][0]["delta"] for event in streamed(fake, **body)]


def test_thoughts_are_told_apart(fake: Running, say: Any) -> None:
    say("<think>\nHm, hm.\n</think>\n\nYes.")
    message = whole(fake)["choices"][0]["message"]
    assert message == {
        "role": "assistant",
        "content": "Yes.",
        "refusal": None,
        "reasoning_content": "Hm, hm.",
    }
    parts = deltas(fake)
    assert parts[0] == {"role": "assistant", "content": ""}
    assert "".join(p.get("reasoning_content", "") for p in parts) == "Hm, hm."
    assert "".join(p.get("content", "") for p in parts) == "Yes."


def test_thoughts_can_be_left_out(fake: Running, say: Any) -> None:
    say("<think>\nHm.\n</think>\n\nYes.")
    assert "reasoning_content" not in whole(fake, include_reasoning=False)["choices"][0]["message"]
    assert not any("reasoning_content" in part for part in deltas(fake, include_reasoning=False))


def test_thoughts_without_an_end_are_no_content(fake: Running, say: Any) -> None:
    say("<think>\nHm, hm.")
    [choice] = whole(fake)["choices"]
    assert choice["message"]["content"] is None
    assert choice["message"]["reasoning_content"] == "Hm, hm."


def test_a_prompt_may_open_thoughts(fake: Running, say: Any) -> None:
    say("Hm.\n</think>\n\nYes.")
    going_on = [*HELLO, {"role": "assistant", "content": "<think>\nWell"}]
    [choice] = whole(fake, messages=going_on, continue_final_message=True)["choices"]
    assert choice["message"]["reasoning_content"] == "Hm."
    assert choice["message"]["content"] == "Yes."


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


@pytest.mark.parametrize("stream", [True, False])
def test_a_named_tool_is_called(
    fake: Running, tokenizer: Tokenizer, say: Any, stream: bool
) -> None:
    say(' {"zone": 1}}\n</tool_call> and more')
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
    prompt = tokenizer.decode(fake.engine.asked[-1].ids, skip_special_tokens=False)
    assert prompt.endswith('</think>\n\n<tool_call>\n{"name": "time", "arguments":')


def test_some_tool_is_called_where_one_is_required(fake: Running, say: Any) -> None:
    say('{"name": "weather", "arguments": {}}\n</tool_call>\n' + CALLS)
    [choice] = whole(fake, tools=TOOLS, tool_choice="required")["choices"]
    names = [call["function"]["name"] for call in choice["message"]["tool_calls"]]
    assert names == ["weather", "weather", "time"]


def test_every_field_reaches_the_engine(fake: Running) -> None:
    body = {
        "max_completion_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1,
        "seed": -5, "stop": "x", "presence_penalty": 1, "frequency_penalty": -1, "n": 2,
        "repetition_penalty": 1.5, "logit_bias": {"5": 1.5}, "min_tokens": 2, "logprobs": True,
        "top_logprobs": 4, "stop_token_ids": [7], "ignore_eos": True, "bad_words": ["a"],
        "allowed_token_ids": [1, 2], "skip_special_tokens": False, "prompt_logprobs": 1,
        "spaces_between_special_tokens": False, "include_stop_str_in_output": True,
        "extra_args": {"a": [1]}, "cache_salt": "salt", "user": "me", "store": True,
        "metadata": {"a": "b"}, "service_tier": "auto", "model": "tiny",
    }  # fmt: skip
    whole(fake, **body)
    asked = fake.engine.asked[-1]
    params = asked.params
    assert asked.salt == "salt"
    assert params.max_tokens == 7
    assert (params.logprobs, params.prompt_logprobs) == (4, 1)
    assert params.logit_bias == {5: 1.5}
    assert params.stop == ["x"]
    for name in ("temperature", "top_p", "top_k", "min_p", "seed", "n", "min_tokens", "ignore_eos",
                 "presence_penalty", "frequency_penalty", "repetition_penalty", "bad_words",
                 "stop_token_ids", "allowed_token_ids", "skip_special_tokens", "extra_args",
                 "spaces_between_special_tokens", "include_stop_str_in_output"):  # fmt: skip
        assert getattr(params, name) == body[name]


def test_an_answer_may_be_as_long_as_fits(fake: Running) -> None:
    whole(fake)
    assert fake.engine.asked[-1].params.max_tokens is None


def test_messages_reach_the_template_as_they_are(fake: Running, tokenizer: Tokenizer) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "refusal": "No.", "audio": None, "annotations": []},
    ]
    whole(fake, messages=messages, chat_template_kwargs={"enable_thinking": False})
    prompt = tokenizer.decode(fake.engine.asked[-1].ids, skip_special_tokens=False)
    assert prompt == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n"
        "<|im_start|>assistant\nNo.<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def test_usage_comes_last_where_it_is_asked_for(fake: Running, say: Any) -> None:
    say("Yes.")
    fake.engine.cached = 3
    plain = streamed(fake)
    assert not any("usage" in event for event in plain)
    *events, last = streamed(fake, stream_options={"include_usage": True})
    assert all(event["usage"] is None for event in events)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 5
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    assert last["usage"] == whole(fake)["usage"]


def test_usage_can_be_in_every_event(fake: Running, say: Any) -> None:
    say("Yes.")
    events = streamed(fake, stream_options={"continuous_usage_stats": True})
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == [0, 1, 2, 3, 4, 5]


def test_scores_cover_every_token(fake: Running, say: Any, tokenizer: Tokenizer) -> None:
    say("<think>é</think>Ja")
    [choice] = whole(fake, logprobs=True, top_logprobs=2)["choices"]
    entries = choice["logprobs"]["content"]
    assert [e["token"] for e in entries[:2]] == ["<think>", "\ufffd"]
    assert entries[1]["bytes"] == [0xC3]
    assert all(len(e["top_logprobs"]) == 2 for e in entries)
    told = [
        entry
        for event in streamed(fake, logprobs=True, top_logprobs=2)
        for entry in (event["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert told == entries


def test_answers_are_told_apart(fake: Running, tokenizer: Tokenizer) -> None:
    fake.engine.answer = lambda ids, params, index: [*tokenizer.encode("ab"[index] * 3), IM_END]
    choices = whole(fake, n=2)["choices"]
    assert [choice["message"]["content"] for choice in choices] == ["aaa", "bbb"]
    texts = ["", ""]
    for event in streamed(fake, n=2):
        [choice] = event["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == ["aaa", "bbb"]


def test_a_stop_string_ends_the_answer_in_the_engine(fake: Running, say: Any) -> None:
    say("Well, well, well.")
    [choice] = whole(fake, stop=["l, w"])["choices"]
    assert choice["message"]["content"] == "Wel"
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "l, w")
    assert fake.engine.asked[-1].cancelled[0] == 0
    last = streamed(fake, stop=["l, w"])[-1]["choices"][0]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", "l, w")


def test_ids_are_told_where_they_are_asked_for(fake: Running, tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode("Ja"), END_OF_TEXT, IM_END]
    fake.engine.answer = lambda prompt, params, index: ids
    answer = whole(fake, return_token_ids=True)
    assert answer["choices"][0]["token_ids"] == ids
    assert answer["prompt_token_ids"] == fake.engine.asked[-1].ids
    events = streamed(fake, return_token_ids=True)
    assert [t for e in events for t in e["choices"][0].get("token_ids", ())] == ids
    assert events[0]["prompt_token_ids"] == fake.engine.asked[-1].ids
