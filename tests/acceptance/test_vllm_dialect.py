"""What vLLM's offline interface takes and gives, and what of it is refused by name."""

from __future__ import annotations

import gc
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from core import LLM, SamplingParams, TextPrompt, TokensPrompt, UserError
from core.dialect import METHODS, arguments
from core.settings import from_arguments
from tests.tiny import IM_END, greedy, save_tiny, tiny_model, tiny_tokenizer

TEXT = "The wind"
IDS = tiny_tokenizer().encode(TEXT)
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generation = {"temperature": 0.6, "top_k": 20}
    return save_tiny(tmp_path_factory.mktemp("tiny"), eos=[IM_END], generation=generation)


@pytest.fixture(scope="module")
def expected() -> list[int]:
    return greedy(tiny_model(), [IDS], 6)[0]


@pytest.fixture(scope="module")
def llm(checkpoint: Path, device: str):
    with LLM(checkpoint, device=device, dtype="float32", block_size=4, max_num_seqs=8) as made:
        yield made


def refusal(call, *arguments: Any, **keywords: Any) -> str:
    with pytest.raises(UserError) as caught:
        call(*arguments, **keywords)
    return str(caught.value)


# making an engine


def settings(checkpoint: Path, **keywords: Any) -> Any:
    return from_arguments(arguments({"model": str(checkpoint), "device": "cpu", **keywords}))


@pytest.mark.parametrize(
    ("name", "value", "key", "becomes"),
    [
        ("dtype", "half", "model.dtype", "float16"),
        ("dtype", "float", "model.dtype", "float32"),
        ("dtype", torch.bfloat16, "model.dtype", "bfloat16"),
        ("max_model_len", 100, "model.max_length", 100),
        ("seed", 7, "model.seed", 7),
        ("seed", None, "model.seed", 0),
        ("tokenizer", Path("elsewhere"), "model.tokenizer", "elsewhere"),
        ("load_format", "dummy", "model.weights", "dummy"),
        ("load_format", "safetensors", "model.weights", "mmap"),
        ("generation_config", "vllm", "model.generation_config", "none"),
        ("tensor_parallel_size", 2, "parallel.tensor", 2),
        ("gpu_memory_utilization", 0.8, "cache.memory_fraction", 0.8),
        ("kv_cache_memory_bytes", 1 << 20, "cache.memory", "1048576B"),
        ("enable_prefix_caching", False, "cache.prefix", False),
        ("kvcache_block_size", 256, "cache.page_size", 256),
        ("num_gpu_blocks_override", 99, "cache.pages", 99),
        ("kv_cache_dtype", "bfloat16", "cache.dtype", "bfloat16"),
        ("max_num_seqs", 3, "scheduler.options.max_num_seqs", 3),
        ("max_num_batched_tokens", 77, "scheduler.options.max_num_batched_tokens", 77),
        ("enable_chunked_prefill", False, "scheduler.options.chunked_prefill", False),
        ("scheduling_policy", "priority", "scheduler.use", "priority"),
        ("distributed_executor_backend", "mp", "executor.use", "local"),
        ("enforce_eager", True, "runner.use", "eager"),
        ("runner", "generate", "runner.use", "eager"),
    ],
)
def test_a_keyword_reaches_its_setting(checkpoint, name, value, key, becomes):
    found = settings(checkpoint, **{name: value})
    for part in key.split("."):
        found = getattr(found, part)
    assert found == becomes


def test_hf_overrides_replace_values_of_the_config(checkpoint):
    found = settings(checkpoint, hf_overrides={"sliding_window": 8})
    assert found.model.config == {"sliding_window": 8}


def test_none_and_values_that_change_nothing_are_silent(checkpoint, caplog):
    plain = settings(checkpoint)
    odd = settings(
        checkpoint, max_model_len=None, quantization=None, trust_remote_code=False, task="generate",
        enable_lora=False, cpu_offload_gb=0.0, tokenizer_mode="auto", revision="main",
        limit_mm_per_prompt={}, hf_overrides=None, enforce_eager=False, disable_log_stats=True,
    )  # fmt: skip
    assert odd.model == plain.model
    assert odd.runner == plain.runner
    assert caplog.text == ""


def test_hints_without_effect_are_logged(checkpoint, caplog):
    settings(checkpoint, swap_space=4, trust_remote_code=True, max_seq_len_to_capture=8192)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 3
    assert "argument swap_space: 4 has no effect: preempted requests are computed again" in (
        caplog.text
    )


def test_everything_wrong_is_said_at_once(checkpoint):
    lines = refusal(
        LLM, checkpoint, max_model_length=5, quantization="awq", enable_lora=True, task="embed",
        gpu_memory_utilisation=None, hf_overrides=lambda config: config,
    ).splitlines()  # fmt: skip
    assert sorted(lines) == sorted(
        [
            "argument max_model_length: there is no such argument. Did you mean max_model_len?",
            "argument quantization: 'awq' is not supported: quantization is read from the "
            "checkpoint's config.json.",
            "argument enable_lora: True is not supported: adapters are not implemented.",
            "argument task: 'embed' is not supported: models generate text and nothing else.",
            "argument gpu_memory_utilisation: there is no such argument. "
            "Did you mean gpu_memory_utilization?",
            "argument hf_overrides: it must be a mapping; functions are not supported.",
        ]
    )


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"block_size": 16, "kvcache_block_size": 32}, "cache.page_size 32"),
        ({"block_size": 16, "cache": {"page_size": 32}}, "cache.page_size 16"),
        ({"enforce_eager": True, "runner": "compiled"}, "runner.use 'eager'"),
        ({"scheduler": {"use": "priority"}, "scheduling_policy": "fcfs"}, "scheduler.use 'fcfs'"),
    ],
)
def test_a_contradiction_is_named(checkpoint, keywords, said):
    message = refusal(LLM, checkpoint, **keywords)
    assert f"makes {said}, and argument" in message
    assert message.endswith("Give one of them.")


def test_a_keyword_adds_to_a_section(checkpoint):
    found = settings(checkpoint, cache={"pages": 9, "page_size": 16}, block_size=16)
    assert (found.cache.pages, found.cache.page_size) == (9, 16)


def test_a_value_of_the_wrong_type_names_the_argument(checkpoint):
    message = refusal(LLM, checkpoint, max_model_len="long")
    assert message.startswith("argument max_model_len: model.max_length: must be a whole number")


# prompts


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


# parameters


def test_one_set_of_parameters_or_one_for_each(llm):
    several = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (2, 5)]
    outputs = llm.generate([TEXT, TEXT], several)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [2, 5]
    message = refusal(llm.generate, [TEXT, TEXT], [GREEDY])
    assert message == "2 prompts need one SamplingParams, or a list of 2; got 1 values."


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


# outputs


def test_an_output_has_what_vllm_s_has(llm, expected):
    params = SamplingParams(temperature=0, max_tokens=6, logprobs=2, ignore_eos=True)
    first, second = llm.generate([TEXT, IDS], params)
    assert int(second.request_id) == int(first.request_id) + 1
    assert (first.prompt, second.prompt) == (TEXT, None)
    assert first.finished
    assert first.prompt_logprobs is None
    (answer,) = first.outputs
    assert (answer.index, answer.token_ids) == (0, expected)
    assert answer.text == llm.get_tokenizer().decode(expected)
    assert (answer.finish_reason, answer.stop_reason, answer.finished()) == ("length", None, True)
    for token, position in zip(expected, answer.logprobs, strict=True):
        assert next(iter(position)) == token
        assert position[token].rank == 1
        assert len(position) == 2
    sums = sum(p[t].logprob for t, p in zip(expected, answer.logprobs, strict=True))
    assert answer.cumulative_logprob == pytest.approx(sums)


def test_without_logprobs_there_are_none(llm):
    (answer,) = llm.generate(TEXT, GREEDY)[0].outputs
    assert (answer.logprobs, answer.cumulative_logprob) == (None, None)


def test_metrics_are_in_order(llm):
    (output,) = llm.generate(TEXT, GREEDY)
    times = output.metrics
    assert times.arrival_time < times.first_token_time <= times.last_token_time
    assert times.last_token_time <= times.finished_time
    assert times.first_token_latency == times.first_token_ts - times.arrival_time
    assert times.last_token_ts == times.last_token_time


def test_samples_are_indexed_and_stops_are_named(llm, expected):
    (output,) = llm.generate(TEXT, SamplingParams(n=3, temperature=1.5, seed=1, max_tokens=4))
    assert [answer.index for answer in output.outputs] == [0, 1, 2]
    stop = SamplingParams(temperature=0, max_tokens=6, stop_token_ids=[expected[2]])
    (answer,) = llm.generate(TEXT, stop)[0].outputs
    assert (answer.finish_reason, answer.stop_reason) == ("stop", expected[2])
    whole = llm.get_tokenizer().decode(expected)
    (answer,) = llm.generate(TEXT, SamplingParams(temperature=0, stop=[whole[3]]))[0].outputs
    assert (answer.finish_reason, answer.stop_reason) == ("stop", whole[3])
    assert answer.text == whole[: whole.index(whole[3])]


def test_prompt_logprobs_belong_to_the_prompt(llm):
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=3)
    (output,) = llm.generate(TEXT, params)
    assert output.prompt_logprobs[0] is None
    for token, position in zip(IDS[1:], output.prompt_logprobs[1:], strict=True):
        assert next(iter(position)) == token
        assert len(position) in (3, 4)
        assert position[token].decoded_token == tiny_tokenizer().decode([token])


def test_priorities_decide_who_goes_first(checkpoint, device, llm):
    with LLM(checkpoint, device=device, scheduling_policy="priority", max_num_seqs=1) as made:
        outputs = made.generate([TEXT] * 3, GREEDY, priority=[2, 1, 0])
    finished = [output.metrics.finished_time for output in outputs]
    assert finished == sorted(finished, reverse=True)
    assert "2 priorities for 1 prompts" in refusal(llm.generate, TEXT, GREEDY, priority=[1, 0])
    assert "the scheduler 'fcfs' does not look at priorities" in refusal(
        llm.generate, TEXT, GREEDY, priority=[1]
    )
    assert llm.generate(TEXT, GREEDY, priority=[0])


# the rest of the class


@pytest.mark.parametrize("name", sorted(METHODS))
def test_what_is_not_offered_is_refused_by_name(llm, name):
    assert not hasattr(llm, name)
    message = refusal(lambda: getattr(llm, name)(["text"]))
    assert message.startswith(f"LLM.{name} is not supported: ")


def test_a_misspelt_attribute_is_an_ordinary_error(llm):
    with pytest.raises(AttributeError, match="no attribute 'genrate'"):
        llm.genrate  # noqa: B018


def test_the_tokenizer_is_the_caller_s_own(llm, expected):
    tokenizer = llm.get_tokenizer()
    assert tokenizer is llm.get_tokenizer()
    batch = tokenizer(["a", "longer"], padding=True, truncation=True, max_length=5)
    assert len(batch["input_ids"][0]) == 5
    (output,) = llm.generate(TEXT, GREEDY)  # and padding has not reached the engine
    assert (output.prompt_token_ids, output.outputs[0].token_ids) == (IDS, expected)


def test_an_engine_that_is_deleted_is_gone(checkpoint, device):
    made = LLM(checkpoint, device=device, tensor_parallel_size=2)
    (process,) = made.engine.executor._ranks._processes.values()
    assert process.poll() is None
    del made
    gc.collect()
    assert process.poll() == 0
