"""The official client against the server as it is started by its command, on the tiny model."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from tests.plugins.serve.running import Launched

QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of Italy?"}]
SILENT = {"chat_template_kwargs": {"enable_thinking": False}}
WORD_5 = "&"  # the text of token 5
WEATHER: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather in a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Rome", "Paris"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]


@pytest.fixture(scope="module")
def client(server: Launched) -> openai.OpenAI:
    return server.openai()


def test_models_are_listed(client: openai.OpenAI) -> None:
    [model] = client.models.list().data
    assert model.id == "tiny"
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.models.retrieve("gpt-4o")


def test_a_chat_is_answered(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=QUESTION, temperature=0, max_completion_tokens=20, extra_body=SILENT
    )
    [choice] = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 20
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_is_the_same_answer(client: openai.OpenAI) -> None:
    given: Any = {"model": "tiny", "messages": QUESTION, "seed": 3, "max_tokens": 40}
    whole = client.chat.completions.create(**given)
    chunks = list(
        client.chat.completions.create(**given, stream=True, stream_options={"include_usage": True})
    )
    *parts, last = chunks
    message: Any = whole.choices[0].message
    deltas: list[Any] = [part.choices[0].delta for part in parts]
    assert "".join(d.content or "" for d in deltas) == (message.content or "")
    thoughts = "".join(getattr(d, "reasoning_content", None) or "" for d in deltas)
    assert thoughts == getattr(message, "reasoning_content", "")
    assert [p.choices[0].finish_reason for p in parts if p.choices[0].finish_reason] == [
        whole.choices[0].finish_reason
    ]
    assert not last.choices
    assert last.usage is not None
    assert whole.usage is not None
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert {chunk.id for chunk in chunks} == {last.id}


def test_the_streaming_helper_understands_the_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="tiny", messages=QUESTION, seed=1, max_tokens=12, extra_body=SILENT
    ) as stream:
        seen = [event for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(event.delta for event in seen) == final.choices[0].message.content


def test_logprobs_are_told(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=QUESTION,
        temperature=0,
        max_tokens=5,
        logprobs=True,
        top_logprobs=3,
        extra_body=SILENT,
    )
    scores = answer.choices[0].logprobs
    assert scores is not None
    assert scores.content is not None
    assert answer.usage is not None
    assert len(scores.content) == answer.usage.completion_tokens
    for position in scores.content:
        assert len(position.top_logprobs) == 3
        assert position.logprob == position.top_logprobs[0].logprob  # greedy
        assert position.bytes == list(position.token.encode())


def test_several_answers_are_given(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=QUESTION, n=3, seed=1, temperature=1.5, max_tokens=12
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({str(choice.message) for choice in answer.choices}) > 1


def test_completions_echo_and_score(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="tiny", prompt="The Mole had", max_tokens=3, echo=True, logprobs=2, temperature=0
    )
    [choice] = answer.choices
    scores: Any = choice.logprobs
    assert choice.text.startswith("The Mole had")
    assert "".join(scores.tokens) == choice.text
    assert scores.token_logprobs[0] is None
    assert all(value <= 0 for value in scores.token_logprobs[1:])
    starts = [
        choice.text[at : at + len(t)]
        for t, at in zip(scores.tokens, scores.text_offset, strict=True)
    ]
    assert starts == scores.tokens


@pytest.mark.parametrize("stream", [True, False])
def test_every_answer_has_the_scores_of_the_prompt(client: openai.OpenAI, stream: bool) -> None:
    given: Any = {"model": "tiny", "prompt": "The Mole had", "max_tokens": 2, "echo": True}
    given |= {"n": 3, "logprobs": 1, "seed": 1, "extra_body": {"prompt_logprobs": 1}}
    if stream:
        choices = [c for event in client.completions.create(**given, stream=True)
                   for c in event.choices]  # fmt: skip
    else:
        choices = client.completions.create(**given).choices
    starts: list[Any] = [[], [], []]
    for choice in choices:
        scores: Any = choice.logprobs
        if choice.text.startswith("The Mole had"):
            assert "".join(scores.tokens).startswith("The Mole had")
            assert len(scores.tokens) == len(scores.token_logprobs)
            values = scores.token_logprobs[: scores.text_offset.index(len("The Mole had"))]
            assert values[0] is None
            assert all(value <= 0 for value in values[1:])
            told: Any = choice.model_extra
            starts[choice.index] = [values, told["prompt_logprobs"]]
    assert len(starts[0][0]) == len(starts[0][1]) > 1
    assert starts[1] == starts[2] == starts[0]


def test_completions_stream(client: openai.OpenAI) -> None:
    given: Any = {"model": "tiny", "prompt": ["The Mole", "The Rat"], "max_tokens": 8, "seed": 5}
    whole = client.completions.create(**given)
    texts = ["", ""]
    for chunk in client.completions.create(**given, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_a_call_can_be_demanded(client: openai.OpenAI, choice: Any) -> None:
    pytest.importorskip("llguidance")  # without it the model may write what is no call
    given: Any = {"model": "tiny", "messages": QUESTION, "tools": WEATHER, "max_tokens": 60}
    given |= {"tool_choice": choice, "seed": 0}
    whole = client.chat.completions.create(**given).choices[0]
    assert whole.finish_reason == "tool_calls"
    [call] = whole.message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Paris")
    with client.chat.completions.stream(**given) as stream:
        final: Any = stream.get_final_completion().choices[0].message
    assert final.tool_calls[0].function.name == "weather"
    assert final.tool_calls[0].function.arguments == call.function.arguments


def test_tools_are_accepted(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=QUESTION, tools=WEATHER, tool_choice="auto", max_tokens=10
    )
    assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")


def test_mistakes_are_told_by_name(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature is -1") as caught:
        client.chat.completions.create(model="tiny", messages=QUESTION, temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError, match="'tiny'"):
        client.chat.completions.create(model="other", messages=QUESTION)
    with pytest.raises(openai.NotFoundError, match="no embeddings"):
        client.embeddings.create(model="tiny", input="a")
    with pytest.raises(openai.BadRequestError, match="no token is possible") as caught:
        client.completions.create(
            model="tiny", prompt="a", extra_body={"allowed_token_ids": [5], "bad_words": [WORD_5]}
        )
    assert caught.value.code == "no_possible_token"
    with pytest.raises(openai.BadRequestError, match=r"1500 tokens.*1024") as caught:
        client.completions.create(model="tiny", prompt=[5] * 1500)
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize("extreme", [
    {"repetition_penalty": 0.01}, {"repetition_penalty": 100}, {"logit_bias": {"9": 100}},
    {"logit_bias": {str(token): -100 for token in range(0, 4000, 7)}}, {"temperature": 3e38},
    {"temperature": 1e-5, "logit_bias": {"9": 100}, "repetition_penalty": 0.01},
    {"presence_penalty": 2, "frequency_penalty": 2, "temperature": 2e-5}, {"top_p": 1e-300},
    {"min_p": 1, "top_k": 1}, {"seed": 2**64 - 1}, {"seed": -(2**63)},
])  # fmt: skip
def test_what_is_allowed_can_be_sampled(server: Launched, extreme: dict[str, Any]) -> None:
    answer = server.post("/v1/completions", {"prompt": "Once", "max_tokens": 6, **extreme})
    assert answer.status_code == 200, answer.text


def test_many_async_streams_at_once(server: Launched) -> None:
    async def one(client: openai.AsyncOpenAI, seed: int) -> str:
        text = ""
        stream = await client.completions.create(
            model="tiny", prompt="Once", seed=seed, max_tokens=10, stream=True
        )
        async for chunk in stream:
            text += chunk.choices[0].text
        return text

    async def all_of_them() -> list[str]:
        async with server.async_openai() as client:
            return await asyncio.gather(*(one(client, seed % 4) for seed in range(12)))

    texts = asyncio.run(all_of_them())
    assert texts[:4] * 3 == texts
    assert len(set(texts)) > 1


def test_cached_tokens_are_told(client: openai.OpenAI) -> None:
    given: Any = {"model": "tiny", "prompt": "The Water Rat " * 12, "max_tokens": 1}
    client.completions.create(**given)
    usage: Any = client.completions.create(**given).usage
    assert usage.prompt_tokens_details.cached_tokens >= 16
