"""The shipped tiny model keeps what its card promises, on text it never saw."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tools import eval_tiny

FOLDER = Path(__file__).parents[2] / "models" / "qwen3" / "tiny"
pytestmark = pytest.mark.skipif(
    not (FOLDER / "model.safetensors").exists(), reason="the trained weights are not here"
)


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


def test_held_out_text_costs_a_fifth_less_than_with_xz(model, tokenizer) -> None:
    text = (FOLDER / eval_tiny.EXCERPT).read_text()[:30_000]
    ids = tokenizer(text)["input_ids"]
    ids = [tokenizer.convert_tokens_to_ids("<|endoftext|>"), *ids]
    scorer = eval_tiny.transformers_logprobs(model)
    bits = eval_tiny.bits_per_byte(scorer, ids, len(text.encode()))
    assert bits < 2.0
    assert bits < 0.8 * eval_tiny.xz_bits_per_byte(text)


def test_sampled_words_are_words(model, tokenizer) -> None:
    start = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    (pieces,) = eval_tiny.sample(model, start, [0], pieces=4, length=200)
    texts = [tokenizer.decode(piece, skip_special_tokens=True) for piece in pieces]
    assert eval_tiny.known_words(texts, eval_tiny.read_words(FOLDER)) > 0.9
    assert max(map(eval_tiny.repeated_5grams, texts)) < 0.5


@pytest.mark.parametrize("thinking", [False, True])
def test_chat_answers_a_question_it_learned(model, tokenizer, thinking: bool) -> None:
    said = eval_tiny.answer(model, tokenizer, "What is the capital of France?", thinking)
    assert "Paris" in said.split("</think>")[-1]
