"""`/v1/chat/completions` on a stand-in for an engine: thoughts, events, what is handed on."""

from __future__ import annotations

from typing import Any

import pytest

from core.text import Tokenizer
from plugins.serve.protocol.chat import for_template
from tests.plugins.serve.chatting import HELLO, deltas, streamed, whole
from tests.plugins.serve.running import Running
from tests.tiny import END_OF_TEXT, IM_END


def test_thoughts_are_told_apart(fake: Running, say: Any) -> None:
    say("<think>\nHm, hm.\n</think>\n\nYes.")
    message = whole(fake)["choices"][0]["message"]
    assert message == {
        "role": "assistant",
        "content": "Yes.",
        "refusal": None,
        "reasoning": "Hm, hm.",
        "reasoning_content": "Hm, hm.",
    }
    parts = deltas(fake)
    assert parts[0] == {"role": "assistant", "content": ""}
    for name in ("reasoning", "reasoning_content"):
        assert "".join(p.get(name, "") for p in parts) == "Hm, hm."
    assert "".join(p.get("content", "") for p in parts) == "Yes."


def test_thoughts_can_be_left_out(fake: Running, say: Any) -> None:
    say("<think>\nHm.\n</think>\n\nYes.")
    [choice] = whole(fake, include_reasoning=False)["choices"]
    for part in (choice["message"], *deltas(fake, include_reasoning=False)):
        assert not part.keys() & {"reasoning", "reasoning_content"}


def test_a_message_can_be_sent_back_as_it_came(fake: Running, say: Any) -> None:
    say("<think>\nHm.\n</think>\n\nYes.")
    message = whole(fake)["choices"][0]["message"]
    assert whole(fake, messages=[*HELLO, message, *HELLO])
    [seen] = for_template([message])
    assert seen == {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}


def test_thoughts_without_an_end_are_no_content(fake: Running, say: Any) -> None:
    say("<think>\nHm, hm.")
    [choice] = whole(fake)["choices"]
    assert choice["message"]["content"] is None
    assert choice["message"]["reasoning_content"] == "Hm, hm."


@pytest.mark.parametrize(
    "begun",
    ["<think>\nWell", [{"type": "text", "text": "<think>"}, {"type": "text", "text": "Well"}]],
)
def test_a_prompt_may_open_thoughts(fake: Running, say: Any, begun: Any) -> None:
    say("Hm.\n</think>\n\nYes.")
    going_on = [*HELLO, {"role": "assistant", "content": begun}]
    [choice] = whole(fake, messages=going_on, continue_final_message=True)["choices"]
    assert choice["message"]["reasoning_content"] == "Hm."
    assert choice["message"]["content"] == "Yes."


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


def test_what_is_known_of_the_prompt_is_told_once(fake: Running) -> None:
    answer = whole(fake, n=3, prompt_logprobs=0)
    found = [e["prompt_logprobs"] for e in streamed(fake, n=3, prompt_logprobs=0)
             if "prompt_logprobs" in e]  # fmt: skip
    assert found == [answer["prompt_logprobs"]]


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


def test_every_token_of_plain_text_has_its_event(
    fake: Running, say: Any, tokenizer: Tokenizer
) -> None:
    text = "añ€😀"
    say(text)
    parts = [part["content"] for part in deltas(fake) if "content" in part]
    assert "".join(parts) == text
    assert len(parts) > len(tokenizer.encode(text))


@pytest.mark.parametrize("thoughts", ["", "<think>Hm.</think>"])
def test_every_token_of_plain_text_is_in_the_usage_of_some_event(
    fake: Running, say: Any, tokenizer: Tokenizer, thoughts: str
) -> None:
    text = "añ€😀"
    say(thoughts + text)
    events = streamed(fake, stream_options={"continuous_usage_stats": True})
    counts = [event["usage"]["completion_tokens"] for event in events]
    some = len(tokenizer.encode(text)) + 1
    assert counts[-some:] == list(range(counts[-1] - some + 1, counts[-1] + 1))
    parts = [event["choices"][0]["delta"] for event in events]
    assert "".join(part.get("content", "") for part in parts) == text
    assert all(parts[:-1])
