"""Tokenizers as checkpoints store them: old and new layouts, other formats, and broken files."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from vocabularies import CORPUS, raw_bytes, raw_llama, raw_trained

from core.errors import UserError
from core.text import Tokenizer

PROMPT = "Grüße <|im_start|>user\n<think>\n😀 fox</think>  jumps<|im_end|>"
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}\n{% endfor %}"


def fast(raw: Any = None, **named: Any) -> Any:
    from transformers import PreTrainedTokenizerFast

    named = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"} | named
    return PreTrainedTokenizerFast(tokenizer_object=raw or raw_trained(), **named)


def write(folder: Path, config: dict[str, Any], raw: Any = None) -> Path:
    (raw or raw_trained()).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def reference(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def assert_same(folder: Path) -> Tokenizer:
    """Plait and transformers read `folder` alike."""
    ours, theirs = Tokenizer.open(folder), reference(folder)
    for text in (PROMPT, *CORPUS, ""):
        assert ours.encode(text) == theirs.encode(text)
        plain = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text, add_special_tokens=False) == plain
    ids = [*range(len(theirs) + 20)]
    for skip in (True, False):
        assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)
    assert ours.vocab_size == len(theirs)
    assert ours.eos_ids == {theirs.eos_token_id}
    assert ours.special_tokens.items() >= theirs.special_tokens_map.items()
    return ours


def test_the_layout_that_transformers_5_writes(tmp_path: Path) -> None:
    theirs = fast(chat_template=TEMPLATE)
    theirs.save_pretrained(tmp_path)
    assert (tmp_path / "chat_template.jinja").is_file()
    assert assert_same(tmp_path).chat_templates == {"default": TEMPLATE}


def test_the_layout_of_released_checkpoints(tmp_path: Path) -> None:
    added = raw_trained().get_added_tokens_decoder()
    fields = ("content", "lstrip", "rstrip", "normalized", "single_word", "special")
    config = {
        "added_tokens_decoder": {
            number: {name: getattr(token, name) for name in fields}
            for number, token in added.items()
        },
        "additional_special_tokens": ["<|im_start|>"],
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": TEMPLATE,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
    }
    ours = assert_same(write(tmp_path, config))
    assert ours.chat_templates == {"default": TEMPLATE}
    assert "bos_token" not in ours.special_tokens


def test_special_tokens_in_a_file_of_their_own(tmp_path: Path) -> None:
    write(tmp_path, {"tokenizer_class": "PreTrainedTokenizerFast"})
    named = {"eos_token": {"content": "<|endoftext|>", "lstrip": False, "rstrip": False}}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(named))
    assert assert_same(tmp_path).special_tokens == {"eos_token": "<|endoftext|>"}


def test_tokens_that_only_the_config_knows_join_the_vocabulary(tmp_path: Path) -> None:
    size = raw_trained().get_vocab_size()
    config = {
        "added_tokens_decoder": {
            str(size): {"content": "<|new|>", "special": True, "normalized": False},
            str(size + 1): {"content": "<note>", "special": False, "normalized": False},
        },
        "eos_token": "<|end of all|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    ours = assert_same(write(tmp_path, config))
    assert ours.encode("<|new|><note>") == [size, size + 1]
    assert size in ours.special_ids
    assert size + 1 in ours.added_ids - ours.special_ids


def test_special_tokens_in_a_text_can_be_ordinary_text(tmp_path: Path) -> None:
    config = {"split_special_tokens": True, "tokenizer_class": "PreTrainedTokenizerFast"}
    ours = assert_same(write(tmp_path, config | {"eos_token": "<|im_end|>"}))
    assert not ours.special_ids & set(ours.encode("<|im_end|>"))


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    config = {"added_tokens_decoder": {"9000": {"content": "<|new|>", "special": True}}}
    with pytest.raises(UserError, match=r"'<\|new\|>' the id 9000"):
        Tokenizer.open(write(tmp_path, config))


def test_tokenizer_json_alone_is_enough(tmp_path: Path) -> None:
    raw_bytes().save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer.open(tmp_path)
    assert ours.decode(ours.encode("a😀")) == "a😀"
    assert (ours.eos_ids, ours.chat_templates) == (frozenset(), {})
    assert Tokenizer.open(tmp_path / "tokenizer.json").encode("a") == ours.encode("a")


def test_truncation_stored_in_the_file_is_not_applied(tmp_path: Path) -> None:
    raw = type(raw_bytes()).from_str(raw_bytes().to_str())
    raw.enable_truncation(4)
    raw.enable_padding(length=12)
    raw.save(str(tmp_path / "tokenizer.json"))
    assert len(Tokenizer.open(tmp_path).encode("123456")) == 6


def test_a_bos_that_the_vocabulary_file_asks_for_is_added_once(tmp_path: Path) -> None:
    config = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "add_bos_token": True,
        "chat_template": "{{ bos_token }}{{ messages[0].content }}",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    ours = assert_same(write(tmp_path, config, raw_llama()))
    bos = ours.raw.token_to_id("<s>")
    assert ours.encode("abc").count(bos) == 1
    text, ids = ours.chat([{"role": "user", "content": "abc"}])
    assert text == "<s>abc"
    assert ids.count(bos) == 1


def test_vocab_and_merges_without_tokenizer_json(tmp_path: Path) -> None:
    raw_trained().model.save(str(tmp_path))
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "eos_token": "<|im_end|>",
        "chat_template": TEMPLATE,
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = assert_same(tmp_path)
    assert ours.chat_templates == {"default": TEMPLATE}
    assert ours.pieces(True) is not None


@pytest.mark.parametrize("auto_map", [["mine.Mine", None], {"AutoTokenizer": ["mine.Mine", None]}])
def test_code_in_a_checkpoint_is_never_run(
    tmp_path: Path, auto_map: Any, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit('the code ran')")
    config = {"auto_map": auto_map, "tokenizer_class": "Mine", "eos_token": "<|im_end|>"}
    write(tmp_path, config)
    with caplog.at_level(logging.WARNING):
        assert Tokenizer.open(tmp_path).encode("a")
    assert "Plait does not run it" in caplog.text
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"never runs(.|\n)*token ids work"):
        Tokenizer.open(tmp_path)


def test_code_of_the_model_is_not_run_for_its_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit('the code ran')")
    config = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.MineConfig"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    raw_trained().model.save(str(tmp_path))
    named = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    assert Tokenizer.open(tmp_path).encode("a")


def test_a_checkpoint_without_a_tokenizer_says_that_ids_still_work(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no tokenizer \(tokenizer.json(.|\n)*token ids work"):
        Tokenizer.open(tmp_path)
    with pytest.raises(UserError, match="no such directory"):
        Tokenizer.open(tmp_path / "missing")


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("tokenizer.json", "version https://git-lfs.github.com/spec/v1", "git-lfs"),
        ("tokenizer.json", '{"version": "1.0"}', "cannot be read as a tokenizer"),
        ("tokenizer_config.json", "{", "cannot be read: "),
        ("tokenizer_config.json", "[]", "JSON object, not list"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, content: str, part: str) -> None:
    write(tmp_path, {})
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=part) as caught:
        Tokenizer.open(tmp_path)
    assert str(tmp_path / name) in str(caught.value)


def test_files_that_transformers_cannot_convert_are_reported(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text("nonsense")
    with pytest.raises(UserError, match="transformers cannot convert"):
        Tokenizer.open(tmp_path)


def test_reading_tokenizer_json_imports_neither_torch_nor_transformers(tmp_path: Path) -> None:
    raw_bytes().save(str(tmp_path / "tokenizer.json"))
    code = (
        "import sys, core.text; assert 'tokenizers' not in sys.modules; "
        f"core.text.Tokenizer.open({str(tmp_path)!r}); "
        "print(sorted({'torch', 'transformers', 'jinja2'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_configuration_alone_is_no_tokenizer(tmp_path: Path) -> None:
    """transformers would make an empty vocabulary of it, and encode every text as nothing."""
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    with pytest.raises(UserError, match=r"no tokenizer \(tokenizer.json, or one of"):
        Tokenizer.open(tmp_path)
