"""Models of extreme shapes: they work like any other, or are refused by name."""

from __future__ import annotations

import pytest

from core import LLM, SamplingParams, UserError
from tests.tiny import greedy, save_tiny, tiny_model

SHAPES = {
    "one layer": {"num_hidden_layers": 1},
    "one head": {"num_attention_heads": 1, "num_key_value_heads": 1},
    "one key/value head": {"num_key_value_heads": 1},
    "a head for each": {"num_key_value_heads": 4},
    "17 heads": {"num_attention_heads": 17, "num_key_value_heads": 17, "head_dim": 2},
    "heads of 2": {"head_dim": 2},
    "hidden 1": {"hidden_size": 1},
    "hidden 3": {"hidden_size": 3},
    "intermediate 1": {"intermediate_size": 1},
    "vocabulary 1": {"vocab_size": 1},
    "vocabulary 3": {"vocab_size": 3, "tie_word_embeddings": False},
    "two positions": {"max_position_embeddings": 2},
    "three positions": {"max_position_embeddings": 3},
    "windows of 3": {
        "use_sliding_window": True,
        "sliding_window": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "all at once": {
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 2,
        "hidden_size": 1,
        "intermediate_size": 1,
        "vocab_size": 1,
        "max_position_embeddings": 2,
    },
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape(tmp_path, device, name):
    shape = SHAPES[name]
    vocabulary = shape.get("vocab_size", 301)
    length = shape.get("max_position_embeddings", 256)
    path = save_tiny(tmp_path, tokenizer=False, **shape)
    prompt = [i * 37 % vocabulary for i in range(min(9, length - 1))]
    count = min(8, length - len(prompt))
    (expected,) = greedy(tiny_model(**shape), [prompt], count)
    every = SamplingParams(
        temperature=1.0, seed=3, top_k=2, top_p=0.9, min_p=0.1, logprobs=1, presence_penalty=0.5
    )
    with LLM(
        path,
        device=device,
        dtype="float32",
        max_num_batched_tokens=5,
        cache={"page_size": 4, "pages": 70, "check": True},
    ) as llm:
        greedily = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        found = llm.generate([prompt, prompt[:1], prompt], greedily, use_tqdm=False)
        assert found[0].outputs[0].token_ids == found[2].outputs[0].token_ids == expected
        (output,) = llm.generate(prompt, every, use_tqdm=False)
        assert output.outputs[0].error is None
        assert len(output.outputs[0].token_ids) == min(16, length - len(prompt))


@pytest.mark.parametrize("name", ["one key/value head", "vocabulary 1", "hidden 1"])
def test_a_shape_on_two_ranks(tmp_path, device, name):
    shape = SHAPES[name]
    path = save_tiny(tmp_path, tokenizer=False, **shape)
    prompt = [i * 37 % shape.get("vocab_size", 301) for i in range(9)]
    (expected,) = greedy(tiny_model(**shape), [prompt], 8)
    greedily = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    with LLM(path, device=device, dtype="float32", tensor_parallel_size=2) as llm:
        (output,) = llm.generate(prompt, greedily, use_tqdm=False)
    assert output.outputs[0].token_ids == expected


def test_a_model_for_one_position_holds_no_answer(tmp_path, device):
    path = save_tiny(tmp_path, max_position_embeddings=1)
    with LLM(path, device=device) as llm, pytest.raises(UserError, match="may hold 1"):
        llm.generate([1], use_tqdm=False)
