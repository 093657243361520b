"""What the server answers is what `LLM.generate` and `LLM.chat` answer: text, ids, scores, ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from core import LLM, SamplingParams
from tests.plugins.serve.running import Launched

PROMPTS = ["The Mole had been", "Once upon a time, naïve Zoë", "«A\n\n\tB 12345 "]
PARAMS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"seed": 1},
    {"seed": 2, "temperature": 1.3, "top_p": 0.8, "top_k": 50, "min_p": 0.02},
    {"seed": 3, "n": 3, "temperature": 1.0},
    {"seed": 4, "presence_penalty": 1.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    {"temperature": 0, "stop": ["the", "and ", ". "]},
    {"temperature": 0, "stop": ["e"], "include_stop_str_in_output": True, "min_tokens": 6},
    {"seed": 5, "stop": "a very long stop string that never comes"},
    {"temperature": 0, "stop_token_ids": [12, 13, 300, 301], "min_tokens": 3},
    {"temperature": 0, "stop_token_ids": [12, 13], "include_stop_str_in_output": True},
    {"seed": 6, "logprobs": 0},
    {"temperature": 0, "logprobs": 5, "stop": ["an"]},
    {"seed": 7, "logprobs": 2, "prompt_logprobs": 2},
    {"seed": 8, "logit_bias": {"12": -100, "400": 3.5}},
    {"seed": 9, "allowed_token_ids": list(range(200, 900, 3))},
    {"temperature": 0, "bad_words": ["the", "mole"]},
    {"seed": 10, "ignore_eos": True, "skip_special_tokens": False, "temperature": 2.0, "top_k": 0},
    {"seed": 11, "ignore_eos": True, "spaces_between_special_tokens": False, "max_tokens": 1},
    {"seed": 12, "max_tokens": None, "stop": ["e"]},
]


def expected(llm: LLM, prompt: str, given: dict[str, Any]) -> Any:
    generation = llm.engine.setup.checkpoint.generation
    params = SamplingParams.from_defaults(generation, **given)
    return llm.generate([prompt], params, use_tqdm=False)[0]


@pytest.mark.parametrize("given", PARAMS, ids=lambda given: ",".join(given))
def test_completions_are_what_generate_gives(
    server: Launched, llm: LLM, given: dict[str, Any]
) -> None:
    given = {"max_tokens": 16, **given}
    for prompt in PROMPTS[::2]:
        wanted = expected(llm, prompt, given)
        body = {"model": "tiny", "prompt": prompt, "return_token_ids": True, **given}
        answer = server.post("/v1/completions", body)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert found["usage"]["prompt_tokens"] == len(wanted.prompt_token_ids)
        assert found["usage"]["completion_tokens"] == sum(len(o.token_ids) for o in wanted.outputs)
        for choice, output in zip(found["choices"], wanted.outputs, strict=True):
            assert choice["index"] == output.index
            assert choice["text"] == output.text
            assert choice["token_ids"] == output.token_ids
            assert choice["prompt_token_ids"] == wanted.prompt_token_ids
            assert choice["finish_reason"] == output.finish_reason
            assert choice["stop_reason"] == output.stop_reason
            assert_scored(choice["logprobs"], output)
        if "prompt_logprobs" in given:
            told = found["choices"][0]["prompt_logprobs"]
            assert told[0] is None
            for position, known in zip(told[1:], wanted.prompt_logprobs[1:], strict=True):
                assert {int(token): pytest.approx(entry["logprob"], abs=1e-4)
                        for token, entry in position.items()} == {
                    token: entry.logprob for token, entry in known.items()}  # fmt: skip


def assert_scored(told: Any, output: Any) -> None:
    if output.logprobs is None:
        assert told is None
        return
    chosen = [known[t] for t, known in zip(output.token_ids, output.logprobs, strict=True)]
    assert told["tokens"] == [one.decoded_token for one in chosen]
    assert told["token_logprobs"] == pytest.approx([one.logprob for one in chosen], abs=1e-4)
    for tops, known in zip(told["top_logprobs"] or (), output.logprobs, strict=False):
        assert tops == {
            text: pytest.approx(max(e.logprob for e in known.values() if e.decoded_token == text),
                                abs=1e-4)
            for text in {entry.decoded_token for entry in known.values()}
        }  # fmt: skip


@pytest.mark.parametrize("given", PARAMS, ids=lambda given: ",".join(given))
def test_streams_are_what_generate_gives(server: Launched, llm: LLM, given: dict[str, Any]) -> None:
    given = {"max_tokens": 16, **given}
    for prompt in PROMPTS[1:2]:
        wanted = expected(llm, prompt, given)
        body = {"prompt": prompt, "return_token_ids": True, **given}
        texts = [""] * len(wanted.outputs)
        ids: list[list[int]] = [[] for _ in wanted.outputs]
        scores: list[list[float]] = [[] for _ in wanted.outputs]
        ends: list[Any] = [None] * len(wanted.outputs)
        for event in map(json.loads, server.events("/v1/completions", body)):
            [choice] = event["choices"]
            index = choice["index"]
            assert ends[index] is None
            texts[index] += choice["text"]
            ids[index] += choice["token_ids"]
            ends[index] = choice["finish_reason"]
            if choice["logprobs"]:
                scores[index] += choice["logprobs"]["token_logprobs"]
        assert texts == [output.text for output in wanted.outputs]
        assert ids == [output.token_ids for output in wanted.outputs]
        assert ends == [output.finish_reason for output in wanted.outputs]
        if "logprobs" in given:
            assert list(map(len, scores)) == list(map(len, ids))


@pytest.mark.parametrize("given", [{}, {"stop": ["a"]}, {"n": 2}, {"min_tokens": 20}])
def test_plain_streams_are_what_generate_gives(
    server: Launched, llm: LLM, given: dict[str, Any]
) -> None:
    given = {"max_tokens": 24, "seed": 21, "temperature": 1.1, **given}
    wanted = expected(llm, PROMPTS[0], given)
    texts = [""] * len(wanted.outputs)
    for event in map(json.loads, server.events("/v1/completions", {"prompt": PROMPTS[0], **given})):
        texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert texts == [output.text for output in wanted.outputs]


CHAT: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "What is the capital of Italy?"}]},
]


def chats(server: Launched, llm: LLM, thinking: bool, seed: int) -> tuple[Any, str]:
    """-> the message that the server answers, and what the model wrote."""
    variables = {"enable_thinking": thinking}
    given: dict[str, Any] = {"seed": seed, "max_tokens": 60, "temperature": 0.6, "top_k": 20}
    params = SamplingParams(**given, top_p=0.95)  # the server takes that from the model's defaults
    [wanted] = llm.chat(CHAT, params, use_tqdm=False, chat_template_kwargs=variables)
    body = {"messages": CHAT, "chat_template_kwargs": variables, "return_token_ids": True}
    found = server.post("/v1/chat/completions", {**body, **given}).json()
    [choice] = found["choices"]
    assert found["prompt_token_ids"] == wanted.prompt_token_ids
    assert choice["token_ids"] == wanted.outputs[0].token_ids
    return choice["message"], wanted.outputs[0].text


def test_chats_are_what_chat_gives(server: Launched, llm: LLM) -> None:
    message, text = chats(server, llm, False, 4)
    assert message["content"] == text
    assert "reasoning_content" not in message


def test_thoughts_and_content_are_what_chat_gives(server: Launched, llm: LLM) -> None:
    thoughtful = 0
    for seed in range(6):
        message, text = chats(server, llm, True, seed)
        thought, tag, said = text.partition("</think>")
        if tag and thought.startswith("<think>"):
            thoughtful += 1
            thought = thought.removeprefix("<think>").strip("\n")
            assert message.get("reasoning_content", "") == thought
            assert message["content"] == said.lstrip("\n")
    assert thoughtful


def test_token_ids_are_a_prompt_as_well(server: Launched, llm: LLM) -> None:
    given = {"seed": 1, "max_tokens": 8}
    ids = llm.get_tokenizer().encode(PROMPTS[0])
    texts = [
        choice["text"]
        for prompt in (PROMPTS[0], ids, [ids], [PROMPTS[0]])
        for choice in server.post("/v1/completions", {"prompt": prompt, **given}).json()["choices"]
    ]
    assert texts == [expected(llm, PROMPTS[0], given).outputs[0].text] * 4


def test_tokens_are_those_of_the_tokenizer(server: Launched, llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    for text in PROMPTS:
        found = server.post("/tokenize", {"prompt": text}).json()
        assert found["tokens"] == tokenizer.encode(text)
        assert found["count"] == len(found["tokens"])
        assert server.post("/detokenize", {"tokens": found["tokens"]}).json() == {"prompt": text}
    messages = [{"role": "user", "content": "Hello"}]
    found = server.post("/tokenize", {"messages": messages}).json()
    assert found["tokens"] == tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
