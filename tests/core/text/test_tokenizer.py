"""Single tokens, hostile text, and what else a tokenizer is asked besides the round trip."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders
from vocabularies import ALL, OTHERS, tokenizer

from core.errors import UserError
from core.text import Tokenizer, TokenizerLike


@given(text=st.text(max_size=40))
@pytest.mark.parametrize("name", ["bytes", "trained"])
def test_bytes_of_the_tokens_are_the_bytes_of_the_text(name: str, text: str) -> None:
    reader = tokenizer(name)
    ids = reader.encode(text)
    assert b"".join(reader.token_bytes(token) or b"" for token in ids) == text.encode()


@pytest.mark.parametrize(
    "name", sorted(OTHERS.keys() - {"suffixes"})
)  # there the one before counts
def test_token_text_is_what_the_token_adds_behind_another(name: str) -> None:
    reader = tokenizer(name)
    plain = [
        token
        for token in range(reader.vocab_size)
        if token not in reader.added_ids | reader.byte_fallback_ids
        and "\ufffd" not in reader.decode([token])
    ]
    before = plain[-1]
    for token in plain:
        assert reader.decode([before, token]) == reader.decode([before]) + reader.token_text(token)


@pytest.mark.parametrize("name", ALL)
def test_token_text_spells_special_tokens_and_leaves_padding_empty(name: str) -> None:
    reader = tokenizer(name)
    for token in reader.added_ids:
        assert reader.token_text(token) == reader.id_to_token(token)
        assert reader.token_bytes(token) == reader.id_to_token(token).encode()
    for token in (reader.vocab_size, reader.vocab_size + 39):
        assert reader.id_to_token(token) is None
        assert reader.token_text(token) == ""
        assert reader.token_bytes(token) is None


@pytest.mark.parametrize("name", ["bytes", "llama"])
def test_part_of_a_character_has_bytes_and_a_replacement_text(name: str) -> None:
    reader = tokenizer(name)
    by_bytes = {reader.token_bytes(token): token for token in range(259)}
    assert reader.token_text(by_bytes[b"\xf0"]) == "\ufffd"
    assert reader.token_text(by_bytes[b"A"]) == "A"


def test_an_added_token_outside_the_byte_alphabet_is_its_own_text() -> None:
    raw = type(ALL["bytes"]()).from_str(ALL["bytes"]().to_str())
    raw.add_special_tokens(["<｜end▁of▁text｜>"])
    reader = Tokenizer(raw)
    (number,) = reader.encode("<｜end▁of▁text｜>")
    assert reader.token_bytes(number) == "<｜end▁of▁text｜>".encode()
    assert reader.decode([number], skip_special_tokens=False) == "<｜end▁of▁text｜>"


@pytest.mark.parametrize(
    ("steps", "quick"),
    [
        ([decoders.ByteLevel()], True),
        ([decoders.ByteLevel(), decoders.Fuse()], True),
        ([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)], False),
        ([decoders.ByteLevel(), decoders.Replace("a", "b")], False),
        ([decoders.Fuse(), decoders.ByteLevel()], False),
        ([decoders.Sequence([decoders.Replace("a", "b"), decoders.ByteLevel()])], False),
        ([decoders.Sequence([decoders.ByteLevel()])], True),
        ([decoders.Fuse()], False),
    ],
)
def test_only_bytes_joined_and_nothing_else_are_byte_level(steps: list[Any], quick: bool) -> None:
    raw = type(ALL["bytes"]()).from_str(ALL["bytes"]().to_str())
    raw.decoder = decoders.Sequence(steps)
    assert (Tokenizer(raw).pieces(True) is not None) == quick


def test_special_and_added_ids() -> None:
    reader = tokenizer("bytes")
    assert reader.special_ids == {256, 257, 258}
    assert reader.added_ids == {256, 257, 258, 259, 260}
    assert reader.eos_ids == {256}
    assert reader.vocab_size == 261
    assert reader.decode([259, 258, 260]) == "<think></think>"


def test_the_empty_prompt_is_no_ids() -> None:
    assert tokenizer("bytes").encode("") == []
    assert tokenizer("bytes").decode([]) == ""


@pytest.mark.parametrize("text", ["a\ud83d", "\udc80", b"bytes", None, 3, ["a"]])
def test_what_is_no_text_is_refused(text: object) -> None:
    with pytest.raises(UserError, match=r"lone surrogate|must be text"):
        tokenizer("trained").encode(text)


@pytest.mark.parametrize("ids", [[-1], [2**32], ["a"], [1.5], [None]])
def test_what_is_no_id_is_refused(ids: list[object]) -> None:
    with pytest.raises(UserError, match="ids to decode"):
        tokenizer("bytes").decode(ids)


@pytest.mark.parametrize("unit", ["a", " ", "fox jumps ", "😀", "qz"])
def test_a_prompt_of_a_megabyte_is_encoded_in_bounded_time(unit: str) -> None:
    text = unit * (1_000_000 // len(unit.encode()))
    begin = time.perf_counter()
    ids = tokenizer("trained").encode(text)
    assert time.perf_counter() - begin < 15
    assert tokenizer("trained").decode(ids) == text


def test_the_built_in_tokenizer_is_what_the_engine_asks_for() -> None:
    reader: TokenizerLike = tokenizer("bytes")
    for name in vars(TokenizerLike):
        if not name.startswith("_"):
            assert hasattr(reader, name)
