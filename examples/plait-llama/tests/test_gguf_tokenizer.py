"""Tokenizers and chat templates that GGUF files describe."""

from __future__ import annotations

import pytest
from gguf_files import SPECIAL, byte_level, write_gguf
from plait_llama import open_tokenizer
from transformers import AutoTokenizer

from core.errors import UserError

TEXTS = (
    "the wind in the willows",
    "hind",  # "in" goes before "nd"
    "The  wind,\n\n\tblown - it's!",
    "naïve café 漢字 🙂",
    "<|im_start|>user\nin the<|im_end|>\n",
    "",
)
PIECES = [
    *"▁thewind",
    *["▁t", "th", "he", "in", "nd", "▁th", "the", "▁the", "win", "wind", "▁wind", "▁w"],
    ".",
    ",",
]


@pytest.fixture
def write(random_llama, tmp_path):
    def write(tokenizer):
        return write_gguf(random_llama(), tmp_path / "model.gguf", tokenizer=tokenizer)

    return write


def sentencepiece(writer, size, prefix=True) -> None:
    """A few pieces with scores, all bytes, one token of the user's."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    kinds = [2, 3, 3, *[6] * 256, *[1] * len(PIECES)]
    scores = [0.0] * 259 + [-float(at) for at in range(len(PIECES))]
    tokens, kinds = [*tokens, "<think>"], [*kinds, 4]
    scores += [-1000.0] * (size - len(scores))
    kinds += [5] * (size - len(tokens))
    tokens += [f"[PAD{id}]" for id in range(len(tokens), size)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_space_prefix(prefix)


@pytest.mark.parametrize("build", [byte_level, sentencepiece])
def test_text_is_read_as_by_transformers(build, write) -> None:
    file = write(build)
    theirs = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    ours = open_tokenizer(file)
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text)
        ids = ours.encode(text, add_special_tokens=False)
        assert ours.decode(ids, skip_special_tokens=False) == text


def test_a_space_is_added_even_to_a_space_as_sentencepiece_does(write) -> None:
    tokenizer = open_tokenizer(write(sentencepiece))
    ids = tokenizer.encode(" the", add_special_tokens=False)
    assert [tokenizer.id_to_token(id) for id in ids] == ["▁", "▁the"]
    assert tokenizer.decode(ids) == " the"


def test_a_space_before_the_text_is_added_if_the_file_says_so(write) -> None:
    with_space = open_tokenizer(write(sentencepiece))
    without = open_tokenizer(write(lambda *given: sentencepiece(*given, prefix=False)))
    text = "the wind<think>the wind"
    assert [with_space.id_to_token(id) for id in with_space.encode(text)] == [
        "<s>", "▁the", "▁wind", "<think>", "▁the", "▁wind"
    ]  # fmt: skip
    assert [without.id_to_token(id) for id in without.encode(text)] == [
        "<s>", "the", "▁wind", "<think>", "the", "▁wind"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("smollm", ["1", "2", "3", "Ġthe", "Ġwind"]),
        ("gpt-2", ["12", "3", "Ġthe", "Ġwind"]),
        ("llama-bpe", ["12", "3", "Ġthe", "Ġwind"]),
    ],
)
def test_text_is_split_as_the_file_says(pre, pieces, write) -> None:
    tokenizer = open_tokenizer(write(changed(pre=pre)))
    ids = tokenizer.encode("123 the wind", add_special_tokens=False)
    assert [tokenizer.id_to_token(id) for id in ids] == pieces


def changed(**settings):
    """A byte-level tokenizer with other settings; None leaves one out."""

    def build(writer, size):
        byte_level(writer, size)
        for name, value in settings.items():
            if value is None:
                del writer.kv_data[0][f"tokenizer.ggml.{name}"]
            else:
                writer.kv_data[0][f"tokenizer.ggml.{name}"].value = value

    return build


@pytest.mark.parametrize(
    ("pre", "add", "around"),
    [
        ("smollm", None, []),
        ("smollm", True, ["<|endoftext|>"]),
        ("llama-bpe", None, ["<|endoftext|>"]),
        ("llama-bpe", False, []),
    ],
)
def test_a_text_begins_as_the_file_or_the_habit_says(pre, add, around, write) -> None:
    tokenizer = open_tokenizer(write(changed(pre=pre, add_bos_token=add)))
    pieces = [tokenizer.id_to_token(id) for id in tokenizer.encode("the")]
    assert pieces == [*around, "the"]


def test_a_chat_is_written_with_the_template_of_the_file(write) -> None:
    tokenizer = open_tokenizer(write(byte_level))
    text, ids = tokenizer.chat([{"role": "user", "content": "the wind"}])
    assert text == "<|im_start|>user\nthe wind<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert {tokenizer.id_to_token(id) for id in tokenizer.eos_ids} == {"<|im_end|>"}
    assert {tokenizer.id_to_token(id) for id in tokenizer.special_ids} == set(SPECIAL)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (changed(pre="chatglm-bpe"), "splits text as 'chatglm-bpe' does, and plait-llama knows"),
        (changed(model="bert"), "its tokenizer is of the kind 'bert'"),
        (changed(model=None), "its tokenizer is of the kind None"),
        (changed(tokens=["a", "b"]), "its tokenizer is broken"),
    ],
)
def test_a_tokenizer_that_cannot_be_built_says_what_to_do(build, sentence, write) -> None:
    with pytest.raises(UserError) as caught:
        open_tokenizer(write(build))
    assert sentence in str(caught.value)
    assert "model.gguf: " in str(caught.value)
    assert "Name a folder with a tokenizer.json in model.tokenizer." in str(caught.value)
