"""Defaults that come from a model's generation_config.json, and checks against a vocabulary."""

from __future__ import annotations

import pytest

from core.errors import UserError
from core.sampling.params import SamplingParams

QWEN3 = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [1, 2]}


class Letters:
    """A tokenizer: one token a letter, the space is one too."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        special = [99] if add_special_tokens else []
        return special + [ord(letter) % 64 for letter in text if letter != "_"]


def test_what_was_not_given_comes_from_the_model() -> None:
    params = SamplingParams.from_defaults(QWEN3, max_tokens=5)
    assert params == SamplingParams(temperature=0.6, top_k=20, top_p=0.95, max_tokens=5)


def test_given_values_win_even_where_they_equal_our_default() -> None:
    params = SamplingParams.from_defaults(QWEN3, temperature=1.0, top_k=0)
    assert (params.temperature, params.top_k, params.top_p) == (1.0, 0, 0.95)


def test_values_assigned_later_win_too() -> None:
    params = SamplingParams()
    params.temperature = 0.2
    assert params.with_defaults(QWEN3).temperature == 0.2


def test_every_default_of_the_model_is_taken() -> None:
    config = {"min_p": 0.1, "repetition_penalty": 1.2, "max_new_tokens": 7}
    wanted = SamplingParams(min_p=0.1, repetition_penalty=1.2, max_tokens=7)
    assert SamplingParams.from_defaults(config) == wanted


def test_without_a_generation_config_samples_vary() -> None:
    assert SamplingParams.from_defaults({}) == SamplingParams()


def test_do_sample_false_means_greedy_unless_a_temperature_is_given() -> None:
    config = {"do_sample": False, "temperature": 0.6}
    assert SamplingParams.from_defaults(config).greedy
    assert SamplingParams.from_defaults(config, temperature=0.7).temperature == 0.7


def test_null_in_the_generation_config_is_no_value() -> None:
    assert SamplingParams.from_defaults({"temperature": None}) == SamplingParams()


def test_an_unusable_value_names_the_file() -> None:
    with pytest.raises(UserError) as caught:
        SamplingParams.from_defaults({"temperature": "hot", "top_p": 3})
    lines = str(caught.value).splitlines()
    assert len(lines) == 2
    assert all(line.startswith("generation_config.json: ") for line in lines)


def test_the_receiver_of_defaults_stays_as_it_was() -> None:
    params = SamplingParams()
    params.with_defaults(QWEN3)
    assert params == SamplingParams()


def test_ids_outside_the_vocabulary_are_refused_all_at_once() -> None:
    params = SamplingParams(
        stop_token_ids=[99, 100], allowed_token_ids=[500], logit_bias={100: 1.0}, logprobs=101
    )
    with pytest.raises(UserError) as caught:
        params.check(100)
    names = [line.partition(" ")[0] for line in str(caught.value).splitlines()]
    assert names == ["stop_token_ids", "allowed_token_ids", "logit_bias", "logprobs"]


def test_the_last_id_and_the_whole_vocabulary_are_fine() -> None:
    SamplingParams(stop_token_ids=[99], allowed_token_ids=[99], logprobs=100).check(100)
    SamplingParams(prompt_logprobs=-1).check(100)


def test_check_looks_again_at_assigned_values() -> None:
    params = SamplingParams()
    params.max_tokens = 0
    with pytest.raises(UserError, match="max_tokens is 0"):
        params.check(100)


def test_bad_words_need_a_tokenizer() -> None:
    with pytest.raises(UserError, match=r"bad_words is .* needs a tokenizer"):
        SamplingParams(bad_words=["ab"]).check(100)


def test_check_spells_bad_words_with_and_without_a_space_before() -> None:
    params = SamplingParams(bad_words=["AB", " AB", "C"])
    params.check(100, Letters())  # type: ignore[arg-type]
    assert params.bad_words_token_ids == [[1, 2], [32, 1, 2], [3], [32, 3]]


def test_a_bad_word_without_tokens_is_refused() -> None:
    with pytest.raises(UserError, match="bad_words is '_'"):
        SamplingParams(bad_words=["_"]).bad_words_ids(_Nothing())  # type: ignore[arg-type]


class _Nothing:
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return []
