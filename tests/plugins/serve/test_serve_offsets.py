"""Offsets of tokens in a completion's text, whatever the vocabulary."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.sampling.params import SamplingParams
from plugins.serve.text.offsets import Offsets
from tests.core.text.vocabularies import ALL, tokenizer

WORDS = st.text(st.sampled_from("the quick é你😀\n"), min_size=1, max_size=20)


@pytest.mark.parametrize("name", ALL)
@given(prompt=WORDS, ids=st.lists(st.integers(0, 1 << 20), max_size=20))
def test_no_offset_leads_out_of_the_text(name: str, prompt: str, ids: list[int]) -> None:
    text = tokenizer(name)
    ids = [token % text.vocab_size for token in ids]
    before = text.encode(prompt)
    echoed = text.decode(before, skip_special_tokens=False)
    offsets = Offsets(before, echoed, SamplingParams(), text)
    of_prompt, of_answer = offsets.prompt(), offsets.answer(ids)
    assert of_prompt == sorted(of_prompt)
    assert not of_prompt or (of_prompt[0] == 0 and of_prompt[-1] <= len(echoed))
    assert of_answer == sorted(of_answer)
    room = len(echoed), len(echoed) + len(text.decode(before + ids)) + 1
    assert all(room[0] <= at <= room[1] for at in of_answer)


def test_words_begin_where_they_stand() -> None:
    """In SentencePiece the first word's token brings a space, which the text does not have."""
    text = tokenizer("llama")
    ids = [text.raw.token_to_id(piece) for piece in ("<s>", "▁the", "▁cat", "s", "你")]
    assert text.decode(ids) == "the cats你"
    assert Offsets(ids, "the cats你", SamplingParams(), text).prompt() == [0, 0, 3, 7, 8]
    assert Offsets(ids[:2], None, SamplingParams(), text).answer(ids[2:]) == [0, 4, 5]


def test_what_was_added_to_a_prompt_takes_no_room() -> None:
    text = tokenizer("bytes")
    [end] = [token for token in text.special_ids if text.token_text(token) == "<|im_end|>"]
    params = SamplingParams()
    given_by_name = Offsets([*text.encode("ab"), end, end], "ab<|im_end|>", params, text)
    assert given_by_name.prompt() == [0, 1, 2, 12]
    added = Offsets([end, *text.encode("ab")], "ab", params, text)
    assert added.prompt() == [0, 0, 1]
    assert added.answer([*text.encode("é"), end, *text.encode("x")]) == [2, 2, 3, 3]
