"""Making an engine with vLLM's keywords; what its class lacks is refused by name."""

from __future__ import annotations

import gc
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from core import LLM
from core.dialect import METHODS, arguments
from core.settings import from_arguments
from tests.acceptance.asking import GREEDY, IDS, TEXT, refusal


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
        LLM, checkpoint, max_model_length=5, enable_lora=True, task="embed",
        gpu_memory_utilisation=None, hf_overrides=lambda config: config,
    ).splitlines()  # fmt: skip
    assert sorted(lines) == sorted(
        [
            "argument max_model_length: there is no such argument. Did you mean max_model_len?",
            "argument enable_lora: True is not supported: adapters are not implemented.",
            "argument task: 'embed' is not supported: models generate text and nothing else.",
            "argument gpu_memory_utilisation: there is no such argument. "
            "Did you mean gpu_memory_utilization?",
            "argument hf_overrides: it must be a mapping; functions are not supported.",
        ]
    )


def test_quantization_names_a_format(checkpoint):
    assert settings(checkpoint, quantization="int8").quantization.use == "int8"
    said = refusal(LLM, checkpoint, quantization="awq")
    assert said.startswith("argument quantization: quantization: no quantization format is called")


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
