"""Requests that cannot run are refused in a sentence, and the engine lives on after each."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from core import LLM, SamplingParams, UserError
from tests.acceptance.broken import whole
from tests.tiny import greedy, save_tiny, tiny_model

__all__ = ["whole"]

PROMPT = list(b"The wind")


@pytest.fixture(scope="module")
def expected() -> list[int]:
    return greedy(tiny_model(), [PROMPT], 6)[0]


@pytest.fixture(scope="module")
def engine(whole: Path, device: str):
    with LLM(
        whole,
        device=device,
        dtype="float32",
        max_num_seqs=8,
        cache={"page_size": 4, "pages": 16, "check": True},
    ) as made:
        yield made


@pytest.fixture
def llm(engine: LLM, expected: list[int]):
    """The engine, which after the test must be idle, lose no page and answer as ever."""
    yield engine
    numbers = engine.engine.statistics()
    assert (numbers["running"], numbers["waiting"], numbers["pages_owned"]) == (0, 0, 0)
    assert numbers["pages_free"] + numbers["pages_cached"] == numbers["pages_total"]
    (output,) = engine.generate(PROMPT, plain(), use_tqdm=False)
    assert output.outputs[0].token_ids == expected


def plain(**changes) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 6, "ignore_eos": True} | changes)


def refusal(llm: LLM, prompts, params=None, **others) -> str:
    with pytest.raises(UserError) as caught:
        llm.generate(prompts, params or plain(), use_tqdm=False, **others)
    return str(caught.value)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("", "prompt 0: the prompt is empty. Give at least one token"),
        ([""], "prompt 0: the prompt is empty"),
        ([[]], "prompt 0: the prompt is empty"),
        ([PROMPT, []], "prompt 1: the prompt is empty"),
        ({"prompt": ""}, "prompt 0: the prompt is empty"),
        ([1] * 64, "has 64 tokens, and a request may hold 64"),  # the whole cache
        ([1] * 300, "has 300 tokens, and a request may hold 64"),  # more than the model, too
        ("x" * 1000, "has 1000 tokens"),
        ([1, 301], "token 1 of the prompt is 301. Token ids are whole numbers from 0 to 300"),
        ([-1], "token 0 of the prompt is -1"),
        ([2**70], f"token 0 of the prompt is {2**70}"),
        ([1, "x"], "token 1 of the prompt is 'x'"),
        ([True], "token 0 of the prompt is True"),
        ([1, 2.0], "token 1 of the prompt is 2.0"),
        ([1, math.nan], "token 1 of the prompt is nan"),
        ([1, None], "token 1 of the prompt is None"),
        ([[[1]]], "token 0 of the prompt is [1]"),
        ([None], "token ids must be a list of whole numbers, not NoneType"),
        ([3.5], "token ids must be a list of whole numbers, not float"),
        (["a", 3], "token ids must be a list of whole numbers, not int"),
        (3, "prompts must be strings or token ids, not int"),
        (b"abc", "prompts must be strings or token ids, not bytes"),
        ("\ud800", "half a character"),
        ({"prompt": 3}, "needs 'prompt' (a string)"),
        ({"prompt_token_ids": "abc"}, "token ids must be a list"),
        ({"promt": "x"}, "a prompt has no 'promt'. Did you mean 'prompt'?"),
    ],
    ids=lambda value: repr(value)[:30] if not isinstance(value, str) or len(value) < 3 else "",
)
def test_a_prompt(llm, prompt, words):
    assert words in refusal(llm, prompt)


def test_scripts_that_catch_value_errors_go_on(llm):
    """As those for vLLM do, whose refusals are such."""
    with pytest.raises(ValueError, match="has 300 tokens"):
        llm.generate([1] * 300, plain(), use_tqdm=False)
    with pytest.raises(ValueError, match="temperature is -1"):
        SamplingParams(temperature=-1)


def test_arrays_are_prompts(llm, expected):
    for prompt in (np.array(PROMPT), torch.tensor(PROMPT), tuple(PROMPT), np.array([PROMPT])):
        (output,) = llm.generate(prompt, plain(), use_tqdm=False)
        assert output.outputs[0].token_ids == expected


HUGE = 10**400


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, "1", None, [], HUGE, 1j])
@pytest.mark.parametrize(
    "name",
    [
        "temperature",
        "top_p",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
    ],
)
def test_a_number_that_is_none(name, value):
    if value == -1.0 and name.endswith("_penalty") and name != "repetition_penalty":
        value = -3.0
    with pytest.raises(UserError, match=f"^{name} is "):
        SamplingParams(**{name: value})


@pytest.mark.parametrize("value", [1.5, "3", [], -2, HUGE, math.nan, True])
@pytest.mark.parametrize(
    "name",
    ["n", "top_k", "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs"],
)
def test_a_whole_number_that_is_none(name, value):
    if name == "seed" and value == -2:
        value = -(2**64)
    with pytest.raises(UserError, match=f"^{name} is "):
        SamplingParams(**{name: value})


NAMES = {field.name for field in fields(SamplingParams)}
WRONG = [
    ({"max_tokens": 0}, "max_tokens is 0: it must be at least 1"),
    ({"max_tokens": -1}, "max_tokens is -1: it must be at least 1"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens is 9: it must not exceed max_tokens"),
    ({"n": 0}, "n is 0"),
    ({"n": 2, "temperature": 0}, "at temperature 0 all samples would be the same"),
    ({"stop": [""]}, "an empty string is found everywhere"),
    ({"stop": [3]}, "stop is [3]: it must be a string or a list of strings"),
    ({"stop": "\ud800"}, "half of a surrogate pair"),
    ({"stop": "x", "detokenize": False}, "detokenize must be true"),
    ({"stop_token_ids": [-1]}, "-1 is no token id"),
    ({"allowed_token_ids": []}, "at least one token must be allowed"),
    ({"logit_bias": {1: math.nan}}, "logit_bias"),
    ({"logit_bias": {"x": 1}}, "'x' is no token id"),
    ({"bad_words": [" "]}, "a word needs more than white space"),
    ({"ignore_eos": 1}, "ignore_eos is 1: it must be True or False"),
    ({"extra_args": 3}, "extra_args is 3: it must map names to values"),
    ({"temprature": 1}, "no parameter 'temprature'. Did you mean 'temperature'?"),
    ({"temperature": -1, "top_p": 2, "nope": 1}, "temperature is -1"),
]


@pytest.mark.parametrize(
    ("wrong", "words"), WRONG, ids=lambda value: str(value) if isinstance(value, dict) else ""
)
def test_parameters_that_cannot_be(wrong, words):
    with pytest.raises(UserError) as caught:
        SamplingParams(**wrong)
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == (3 if "nope" in wrong else 1)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [(wrong, words) for wrong, words in WRONG if wrong.keys() <= NAMES],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_parameters_that_are_made_impossible_later(llm, wrong, words):
    params = plain()
    for name, value in wrong.items():
        setattr(params, name, value)
    assert words in refusal(llm, PROMPT, params)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stop_token_ids": [301]}, "stop_token_ids is [301]: this model's token ids end at 300"),
        ({"logit_bias": {301: 1.0}}, "logit_bias is [301]"),
        ({"allowed_token_ids": [5, 10**6]}, "allowed_token_ids is [1000000]"),
        ({"logprobs": 302}, "this model has 301 tokens; -1 asks for all"),
        ({"prompt_logprobs": 302}, "this model has 301 tokens"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_parameters_that_this_model_cannot(llm, changes, words):
    assert f"prompt 0: {words}" in refusal(llm, PROMPT, plain(**changes)) or words in refusal(
        llm, PROMPT, plain(**changes)
    )


def test_values_that_are_assigned_later_are_looked_at_again(llm):
    params = plain()
    params.temperature = math.nan
    params.max_tokens = -5
    said = refusal(llm, PROMPT, params)
    assert "temperature is nan" in said
    assert "max_tokens is -5" in said


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (3, "1 prompts need one SamplingParams, or a list of 1 of them, not int"),
        ({"temperature": 0}, "not dict"),
        ([plain(), plain()], "not 2"),
        ([None], "1 prompts need one SamplingParams"),
        ("greedy", "not str"),
    ],
)
def test_parameters_that_are_none(llm, params, words):
    assert words in refusal(llm, PROMPT, params)


@pytest.mark.parametrize("priority", [3, "x", ["x"], [1.5], [None], [1, 2]])
def test_priorities_that_are_none(llm, priority):
    assert "priorit" in refusal(llm, PROMPT, priority=priority)


def test_every_wrong_prompt_is_named_and_none_starts(llm):
    said = refusal(llm, [PROMPT, [], [301], PROMPT * 9])
    assert [line[:8] for line in said.splitlines()] == ["prompt 1", "prompt 2", "prompt 3"]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        (3, "messages must be a list of messages, not int"),
        ("hi", "messages must be a list of messages, not str"),
        ({"role": "user", "content": "x"}, "messages must be a list of messages, not dict"),
        ([], "messages is empty"),
        ([[]], "messages is empty"),
        ([{"role": "user"}], "messages[0] (role 'user') has no content"),
        ([{"content": "x"}], "messages[0] has no role"),
        ([{"role": "user", "content": 3}], "messages[0]"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "only text parts are supported"),
        ([{"role": "user", "content": "\ud800"}], "half a character"),
        ([{"role": "user", "content": "x" * 300}], "a request may hold 64"),
    ],
    ids=lambda value: str(value)[:40] if not isinstance(value, str) else "",
)
def test_messages(llm, messages, words):
    with pytest.raises(UserError) as caught:
        llm.chat(messages, plain(), use_tqdm=False)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"chat_template": "{{ bad"}, "The chat template is not valid Jinja"),
        ({"chat_template": 3}, "chat_template=3 is neither Jinja source nor"),
        ({"chat_template": "{{ ''.__class__.__mro__ }}"}, "SecurityError"),
        ({"chat_template": "{{ messages[5].x.y }}"}, "The chat template fails"),
        ({"chat_template": "{{ '' }}"}, "the prompt is empty"),
        ({"chat_template_kwargs": 3}, "chat_template_kwargs must be a mapping, not 3"),
        ({"chat_template_kwargs": {"messages": 1}}, "messages cannot be given"),
        ({"tools": 3}, "tools must be a list of tools, not int"),
        ({"tools": [3]}, "The chat template fails"),
        ({"nonsense": 1}, "there is no argument 'nonsense'"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_templates(llm, options, words):
    with pytest.raises(UserError) as caught:
        llm.chat([{"role": "user", "content": "a"}], plain(), use_tqdm=False, **options)
    assert words in str(caught.value)


def test_an_end_of_text_that_the_model_cannot_sample(tmp_path, device):
    path = save_tiny(tmp_path, eos=[256, 4000])
    with LLM(path, device=device, dtype="float32") as llm:
        params = SamplingParams(min_tokens=4, max_tokens=6, temperature=1.5, seed=1)
        (output,) = llm.generate(PROMPT, params, use_tqdm=False)
    assert output.outputs[0].error is None
    assert 4 <= len(output.outputs[0].token_ids) <= 6
