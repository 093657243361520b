"""Prompts and parameters in every form that a version of vLLM, or nano-vLLM, has taken."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from core import LLM, SamplingParams, TextPrompt, TokensPrompt
from tests.acceptance.asking import GREEDY, IDS, TEXT, refusal


@pytest.mark.parametrize(
    "prompts",
    [
        TEXT, [TEXT], (TEXT,), IDS, [IDS], np.array(IDS), torch.tensor([IDS]), iter([TEXT]),
        [np.array(IDS)], [list(np.array(IDS))], {"prompt": TEXT}, {"prompt_token_ids": IDS},
        [{"prompt_token_ids": IDS, "prompt": "other"}], TextPrompt(prompt=TEXT),
        [TokensPrompt(prompt_token_ids=IDS)], {"prompt": TEXT, "multi_modal_data": None},
    ],
)  # fmt: skip
def test_a_prompt_in_any_form_gives_the_same(llm, expected, prompts):
    (output,) = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert output.outputs[0].token_ids == expected
    assert output.prompt_token_ids == IDS
    assert all(type(token) is int for token in output.prompt_token_ids)


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [
        ((), {"prompts": [TEXT], "sampling_params": GREEDY}),
        ((), {"prompt_token_ids": [IDS], "sampling_params": GREEDY}),
        ((), {"prompt_token_ids": IDS, "sampling_params": [GREEDY]}),
        (([TEXT], GREEDY), {"prompt_token_ids": [IDS]}),
        ((None, GREEDY, [IDS], False), {}),
        ((TEXT, GREEDY, False), {}),
        (([TEXT], GREEDY), {"lora_request": None, "tokenization_kwargs": None, "use_tqdm": print}),
    ],
)
def test_the_call_of_every_version_gives_the_same(llm, expected, arguments, keywords):
    (output,) = llm.generate(*arguments, **keywords)
    assert output.outputs[0].token_ids == expected


def test_nothing_asked_is_nothing_answered(llm):
    assert llm.generate([], GREEDY) == []


def test_prompts_are_none_or_wrong(llm):
    assert "needs prompts" in refusal(llm.generate)
    assert "must be strings or token ids, not int" in refusal(llm.generate, 5)
    assert "2 prompts and 1 lists of prompt_token_ids" in refusal(
        llm.generate, ["a", "b"], prompt_token_ids=[IDS]
    )
    assert "a prompt has no 'multi_modal_data'" in refusal(
        llm.generate, {"prompt": TEXT, "multi_modal_data": {"image": 1}}
    )
    assert "'promt'. Did you mean 'prompt'?" in refusal(llm.generate, {"promt": TEXT})
    assert "token 0 of the prompt is True" in refusal(llm.generate, [[True, 5]])


def test_a_salt_keeps_cached_prompts_apart(llm):
    def cached(**more: str) -> int:
        (output,) = llm.generate({"prompt_token_ids": [9] * 16, **more}, GREEDY)
        return output.num_cached_tokens

    assert [cached(), cached(), cached(cache_salt="a"), cached(cache_salt="a")] == [0, 12, 0, 12]
    assert llm.reset_prefix_cache() is True
    assert cached() == 0


def test_arguments_of_a_call_are_checked(llm):
    assert "lora_request: 'x' is not supported: adapters" in refusal(
        llm.generate, TEXT, GREEDY, lora_request="x"
    )
    message = refusal(llm.generate, TEXT, sampling_parms=GREEDY)
    assert message == (
        "generate: there is no argument 'sampling_parms'. Did you mean sampling_params?"
    )
    messages = [{"role": "user", "content": "Hello"}]
    assert "Variables of the chat template go into chat_template_kwargs" in refusal(
        llm.chat, messages, GREEDY, enable_thinking=False
    )
    assert "'openai' is not supported" in refusal(
        llm.chat, messages, chat_template_content_format="openai"
    )
    assert llm.chat(messages, GREEDY, lora_request=None, chat_template_content_format="auto")


def test_one_set_of_parameters_or_one_for_each(llm):
    several = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (2, 5)]
    outputs = llm.generate([TEXT, TEXT], several)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [2, 5]
    message = refusal(llm.generate, [TEXT, TEXT], [GREEDY])
    assert message.startswith("2 prompts need one SamplingParams, or a list of 2")


def test_the_model_s_own_parameters(llm):
    params = llm.get_default_sampling_params()
    assert (params.temperature, params.top_k, params.max_tokens) == (0.6, 20, 16)
    params.max_tokens = 3
    (output,) = llm.generate(TEXT, params)
    assert len(output.outputs[0].token_ids) <= 3
    assert llm.get_default_sampling_params().max_tokens == 16


def test_a_clone_is_independent():
    params = SamplingParams(stop=["a"], logit_bias={3: 1.0})
    copy = params.clone()
    copy.stop.append("b")
    copy.temperature = 0.5
    assert (params.stop, params.temperature) == (["a"], 1.0)
    assert copy.logit_bias == {3: 1.0}


@pytest.mark.parametrize("name", ["best_of", "use_beam_search", "logits_processors", "temprature"])
def test_parameters_that_are_gone_say_what_to_do(name):
    message = refusal(SamplingParams, **{name: 1})
    assert message.startswith(f"SamplingParams has no parameter {name!r}. ")
    assert len(message.split(". ")[1]) > 10
    assert "extra_args" not in message


def test_positional_parameters_are_refused():
    # their order is another one in every version of vLLM
    assert "takes keywords only" in refusal(SamplingParams, 2)


def test_the_seed_of_an_engine_repeats_a_run(checkpoint, device):
    def run(seed: int) -> list[list[int]]:
        with LLM(checkpoint, device=device, seed=seed) as made:
            params = SamplingParams(temperature=9, max_tokens=8, ignore_eos=True)
            return [o.outputs[0].token_ids for o in made.generate([TEXT, TEXT], params)]

    first = run(3)
    assert first == run(3) != run(4)
    assert first[0] != first[1]
