"""Requests of many kinds, and what `LLM.generate` and `LLM.chat` answer to each of them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from core import LLM, SamplingParams
from tests.plugins.serve.load.wire import Reply, events

STORY = (
    "The Mole had been working very hard all the morning, spring-cleaning his little home. "
    "First with brooms, then with dusters; then on ladders and steps and chairs. "
)
PROMPTS = [
    "Once upon a time",
    "«A\n\n\tnaïve Zoë 12345 ",
    STORY,
    STORY + '"Who is there?" said the Rat, and',
    STORY * 4 + "Then the Badger",
]
CHATS = [
    [{"role": "user", "content": "What is the capital of Italy?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": STORY * 2}],
]
PARAMS: list[dict[str, Any]] = [
    {"temperature": 0, "max_tokens": 40},
    {"seed": 1, "max_tokens": 48},
    {"seed": 2, "temperature": 1.3, "top_p": 0.8, "top_k": 50, "min_p": 0.02, "max_tokens": 20},
    {"seed": 3, "n": 3, "temperature": 1.0, "max_tokens": 16},
    {"seed": 4, "presence_penalty": 1.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    {"temperature": 0, "stop": ["the", "and ", ". "]},
    {"seed": 5, "stop": ["e"], "include_stop_str_in_output": True, "min_tokens": 6, "n": 2},
    {"seed": 6, "stop": "a very long stop string that never comes"},
    {"temperature": 0, "stop_token_ids": [12, 13, 300, 301], "min_tokens": 3},
    {"seed": 7, "logprobs": 3, "ignore_eos": True},
    {"temperature": 0, "logprobs": 1, "stop": ["an"]},
    {"seed": 8, "n": 2, "logprobs": 0, "temperature": 0.9, "max_tokens": 12},
    {"seed": 9, "logit_bias": {"12": -100, "400": 3.5}},
    {"seed": 10, "ignore_eos": True, "max_tokens": 1},
]
USUAL = {"max_tokens": 24}
NEAR = 1e-3
"""Log probabilities: a batch of another size sums in another order."""


@dataclass(frozen=True)
class Choice:
    """One answer."""

    text: str
    ids: list[int]
    finish: str | None
    scores: list[float] | None  # of the chosen tokens


@dataclass(frozen=True)
class Ask:
    """A request, and its right answer."""

    path: str
    body: dict[str, Any]
    prompt: int  # tokens
    choices: list[Choice]

    def request(self, stream: bool, ids: bool, salt: str | None) -> bytes:
        """Its body. `ids`: with token ids; `salt`: the prefix cache is of no use."""
        more: dict[str, Any] = {"stream_options": {"include_usage": True}} if stream else {}
        more |= {"cache_salt": salt} if salt else {}
        return json.dumps({**self.body, **more, "stream": stream, "return_token_ids": ids}).encode()

    def wrong(self, reply: Reply) -> str | None:
        """What is wrong with an answer, in a sentence."""
        if reply.status != 200:
            return f"status {reply.status}: {reply.body[:300]!r}"
        streamed = reply.headers["content-type"].startswith("text/event-stream")
        try:
            told = events(reply.body) if streamed else [json.loads(reply.body)]
            errors = [event["error"] for event in told if "error" in event]
            assert not errors, f"an error: {errors}"
            usage = told[-1]["usage"]
            assert usage["prompt_tokens"] == self.prompt, f"another prompt: {usage}"
            count = sum(len(choice.ids) for choice in self.choices)
            assert usage["completion_tokens"] == count, f"other numbers of tokens: {usage}"
            parts: list[list[Any]] = [[] for _ in self.choices]
            for event in told:
                for choice in event["choices"]:
                    parts[choice["index"]].append(choice)
            for index, (some, wanted) in enumerate(zip(parts, self.choices, strict=True)):
                _compare(some, wanted, f"answer {index}")
        except (AssertionError, KeyError, IndexError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        return None


def _compare(parts: list[Any], wanted: Choice, which: str) -> None:
    texts, ids, scores, ends = "", [], [], []
    for part in parts:
        told = part["delta"] if "delta" in part else part.get("message")
        texts += part["text"] if told is None else told.get("content") or ""
        assert told is None or not told.get("tool_calls"), f"{which} calls a tool"
        ids += part.get("token_ids") or []
        if part.get("logprobs"):
            found = part["logprobs"]
            scores += found.get("token_logprobs") or [
                one["logprob"] for one in found.get("content") or ()
            ]
        if part.get("finish_reason") is not None:
            ends.append(part["finish_reason"])
    assert texts == wanted.text, f"{which} is {texts!r}, and not {wanted.text!r}"
    assert ends == [wanted.finish], f"{which} ends with {ends}, and not {wanted.finish!r}"
    assert not ids or ids == wanted.ids, f"{which} has the ids {ids}, and not {wanted.ids}"
    if wanted.scores is not None:
        assert len(scores) == len(wanted.scores), f"{which} has {len(scores)} scores"
        pairs = zip(scores, wanted.scores, strict=True)
        assert all(math.isclose(a, b, abs_tol=NEAR) for a, b in pairs), f"{which} scored otherwise"


def pool(llm: LLM) -> list[Ask]:
    """Every prompt and chat with every kind of parameters, answered offline."""
    generation = llm.engine.setup.checkpoint.generation
    every = [{**USUAL, **given} for given in PARAMS]
    params = [SamplingParams.from_defaults(generation, **given) for given in every]
    prompts = [prompt for prompt in PROMPTS for _ in every]
    texts = llm.generate(prompts, params * len(PROMPTS), use_tqdm=False)
    bodies = [{"prompt": prompt, **given} for prompt in PROMPTS for given in every]
    found = [_ask("/v1/completions", *pair) for pair in zip(bodies, texts, strict=True)]
    variables = {"enable_thinking": False}
    for messages in CHATS:
        talks = llm.chat(
            [messages] * len(every), params, use_tqdm=False, chat_template_kwargs=variables
        )
        for given, talk in zip(every, talks, strict=True):
            body = {"messages": messages, "chat_template_kwargs": variables, **given}
            if (logprobs := body.pop("logprobs", None)) is not None:
                body |= {"logprobs": True, "top_logprobs": logprobs}
            found.append(_ask("/v1/chat/completions", body, talk))
    return found


def _ask(path: str, body: dict[str, Any], output: Any) -> Ask:
    choices = [
        Choice(
            each.text,
            list(each.token_ids),
            each.finish_reason,
            None
            if each.logprobs is None
            else [known[t].logprob for t, known in zip(each.token_ids, each.logprobs, strict=True)],
        )
        for each in output.outputs
    ]
    return Ask(path, body, len(output.prompt_token_ids), choices)
