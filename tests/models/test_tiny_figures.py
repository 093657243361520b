"""The tiny model keeps what its card promises, by transformers and by Plait alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from core import LLM
from tools.tiny_engines import answers, plait_logprobs, samples, transformers_logprobs
from tools.tiny_golden import MODEL, open_model
from tools.tiny_heldout import read_excerpt, read_words
from tools.tiny_measures import bits_per_byte, known_words, repeated_5grams, xz_bits_per_byte

THREADS = str(Path(__file__).parents[1] / "threads.py")
TEXT = read_excerpt(MODEL)[:4_000]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with open_model(cache={"page_size": 16}) as llm:
        yield llm


@pytest.fixture(scope="module")
def tokens(llm: LLM) -> list[int]:
    return llm.get_tokenizer().encode("<|endoftext|>" + TEXT)


@pytest.fixture(scope="module")
def bits(tokens: list[int]) -> float:
    return bits_per_byte(transformers_logprobs(MODEL), tokens, len(TEXT.encode()))


def test_held_out_text_costs_a_fifth_less_than_with_xz(bits: float) -> None:
    assert bits < 2.0
    assert bits < 0.8 * xz_bits_per_byte(TEXT)


def test_plait_finds_the_bits_of_transformers(llm: LLM, tokens: list[int], bits: float) -> None:
    found = bits_per_byte(plait_logprobs(llm), tokens, len(TEXT.encode()))

    assert found == pytest.approx(bits, abs=5e-5)


def test_two_ranks_find_the_bits_of_transformers(tokens: list[int], bits: float) -> None:
    settings = {"plugins": [THREADS], "executor": "threads", "tensor_parallel_size": 2}
    with open_model(cache={"page_size": 16}, **settings) as llm:
        found = bits_per_byte(plait_logprobs(llm), tokens, len(TEXT.encode()))

    assert found == pytest.approx(bits, abs=5e-5)


def test_sampled_words_are_words(llm: LLM) -> None:
    texts = [text for pieces in samples(llm, range(5), length=60) for text in pieces]

    assert len(set(texts)) == 20
    assert known_words(texts, read_words(MODEL)) > 0.95
    assert max(map(repeated_5grams, texts)) < 0.5


@pytest.mark.parametrize("thinking", [False, True])
def test_chat_answers_a_question_it_learned(llm: LLM, thinking: bool) -> None:
    (said,) = answers(llm, ["What is the capital of France?"], thinking)

    assert "Paris" in said.split("</think>")[-1]
