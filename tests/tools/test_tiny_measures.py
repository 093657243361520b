"""The measures of the tiny model against numbers worked out by hand."""

from __future__ import annotations

import math
import random

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from tools.tiny_engines import model_logprobs
from tools.tiny_measures import (
    bits_per_byte,
    grams,
    known_words,
    repeated_5grams,
    windows,
    xz_bits_per_byte,
)


@pytest.fixture(scope="module")
def model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=2, head_dim=8,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    return Qwen3ForCausalLM(config).double().eval()


def test_a_coin_costs_one_bit_a_token() -> None:
    fair = lambda batch: [[math.log(0.5)] * (len(row) - 1) for row in batch]  # noqa: E731
    assert bits_per_byte(fair, range(101), size=50, window=16, stride=8) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("count", "window", "stride"), [(1, 8, 4), (5, 8, 4), (8, 8, 4), (50, 8, 3)]
)
def test_every_token_is_scored_once_with_enough_before_it(
    count: int, window: int, stride: int
) -> None:
    scored = []
    for begin, end, first in windows(count, window, stride):
        assert end - begin <= window
        assert begin == 0 or first - begin >= window - stride
        scored += range(first, end)
    assert scored == list(range(1, count))


def test_sliding_windows_agree_with_a_sum_over_prefixes(model: Qwen3ForCausalLM) -> None:
    tokens = torch.randint(50, (23,), generator=torch.Generator().manual_seed(1)).tolist()
    total = 0.0
    for t in range(1, 23):
        begin = 0 if t < 8 else 8 + 3 * ((t - 8) // 3) + 3 - 8
        begin = begin if t < 8 else min(begin, 23 - 8)
        with torch.no_grad():
            logits = model(torch.tensor([tokens[begin:t]])).logits[0, -1]
        total -= float(logits.log_softmax(-1)[tokens[t]]) / math.log(2)
    found = bits_per_byte(model_logprobs(model), tokens, 23, window=8, stride=3, batch=4)
    assert found == pytest.approx(total / 23, rel=1e-6)


def test_known_words_and_loops() -> None:
    assert known_words(["The cat zzq sat on"], {"the", "cat", "sat"}) == 0.75
    assert repeated_5grams("a b c d e f g h") == 0.0
    assert repeated_5grams("a b c d e " * 20) > 0.9
    assert grams("A b, a b! a c", 2) == {("a", "b"): 2, ("b", "a"): 2, ("a", "c"): 1}


def test_random_hexadecimal_digits_cost_xz_a_little_more_than_half_a_byte() -> None:
    digits = "".join(random.Random(0).choices("0123456789abcdef", k=20_000))
    assert 4.0 < xz_bits_per_byte(digits) < 4.8
