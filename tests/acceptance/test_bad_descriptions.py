"""Broken config.json, tokenizer and generation_config.json: a sentence that names file and key."""

from __future__ import annotations

import json

import pytest

from core import LLM, UserError
from tests.acceptance.broken import broken, call, unread, whole

__all__ = ["broken", "call", "unread", "whole"]

pytestmark = pytest.mark.usefixtures("unread")

HUGE = 10**400  # more than a float can hold
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json"]
)
@pytest.mark.parametrize(
    "content",
    ["", "{nope", "[1, 2]", "null", DEEP, b"\xff\xfe{}", '{"a": ' + "9" * 5000 + "}"],
    ids=["empty", "no JSON", "a list", "null", "deep", "no UTF-8", "a huge number"],
)
def test_a_file_that_is_no_json_object(call, broken, name, content):
    broken.write(name, content)
    assert str(broken.path / name) in call.mistake(broken)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vocab_size": "301"}, "vocab_size must be a positive whole number, not '301'"),
        ({"vocab_size": 301.0}, "vocab_size must be a positive whole number, not 301.0"),
        ({"vocab_size": True}, "vocab_size must be a positive whole number, not True"),
        ({"vocab_size": 2**62}, "vocab_size is 4611686018427387904, and no model has more than"),
        ({"vocab_size": 10**40}, "vocab_size is 1000"),
        ({"hidden_size": 0}, "hidden_size must be a positive whole number, not 0"),
        ({"hidden_size": [64]}, "hidden_size must be a positive whole number, not [64]"),
        ({"hidden_size": 2**31 - 1, "intermediate_size": 2**31 - 1}, "no memory can hold"),
        ({"num_hidden_layers": -1}, "num_hidden_layers must be a positive whole number"),
        (
            {"num_hidden_layers": 10**9, "layer_types": None},
            "num_hidden_layers is 1000000000, and no model has more than 10,000",
        ),
        ({"num_hidden_layers": 2}, "layer_types must be a list of 2 names"),
        ({"head_dim": 33}, "head_dim is 33: rotary embedding needs pairs"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3"),
        ({"max_position_embeddings": 10**30}, "max_position_embeddings is 1000"),
        ({"rms_norm_eps": HUGE}, "rms_norm_eps must be a small positive number"),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": HUGE}},
            "rope_theta must be a number above 1",
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e6, "factor": HUGE}},
            "factor must be a number of at least 1",
        ),
        ({"rms_norm_eps": "x"}, "rms_norm_eps must be a small positive number, not 'x'"),
        ({"rope_parameters": 3}, "rope_parameters must be an object or null, not 3"),
        ({"rope_parameters": {"rope_type": []}}, "rope_type [] is not implemented"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": "a"}}, "rope_theta must be"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"dtype": "int8"}, "dtype must be one of float32"),
        ({"dtype": {}}, "dtype must be one of float32"),
        ({"hidden_act": []}, "hidden_act [] is not implemented"),
        ({"architectures": "Qwen3ForCausalLM"}, "'architectures' must hold one model class"),
        ({"architectures": ["A", "B"]}, "'architectures' must hold one model class"),
        ({"architectures": None}, "'architectures' must hold one model class, not None"),
        ({"architectures": ["LlamaForCausalLM"]}, "no model is called 'LlamaForCausalLM'"),
        ({"model_type": 3}, "model_type is 3"),
        ({"layer_types": [{}, [], 1]}, "layer_types: '{}' is not implemented"),
        ({"eos_token_id": "x"}, "eos_token_id must be an id or a list of ids, not 'x'"),
        ({"eos_token_id": [1, None]}, "eos_token_id must be an id or a list of ids"),
        ({"quantization_config": [1]}, "quantization_config must be an object, not [1]"),
        ({"use_sliding_window": True, "sliding_window": "x"}, "sliding_window must be a positive"),
        ({"num_experts": 8}, "'num_experts' is not implemented for Qwen3"),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, dict) else "",
)
def test_a_value_of_config_json_that_cannot_be(call, broken, changes, words):
    broken.json("config.json", **changes)
    said = call.mistake(broken)
    assert words in said
    if "no memory" not in words:
        assert str(broken.path / "config.json") in said


def test_all_values_are_told_at_once(call, broken):
    broken.json("config.json", head_dim=33, dtype="int8", vocab_size="x", surprise=1)
    said = call.mistake(broken)
    assert all(key in said for key in ("head_dim", "dtype", "vocab_size", "surprise"))


def test_mistakes_of_different_files_are_told_at_once(call, broken):
    broken.json("config.json", vocab_size="x", eos_token_id="y")
    broken.json("generation_config.json", temperature=-1)
    broken.write("tokenizer.json", "{")
    said = call.mistake(broken)
    for words in ("vocab_size", "eos_token_id", "temperature is -1", "tokenizer.json: cannot be"):
        assert words in said


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"temperature": "x"}, "temperature is 'x': it must be a number"),
        ({"temperature": float("nan")}, "temperature is nan: it must be a finite number"),
        ({"top_k": 1.5}, "top_k is 1.5: it must be a whole number"),
        ({"top_p": 0}, "top_p is 0: it must be more than 0"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
        ({"max_new_tokens": 0}, "max_tokens is 0"),
        ({"top_p": 2, "top_k": []}, "top_p is 2"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_sampling_defaults_that_cannot_be(call, broken, changes, words):
    broken.json("generation_config.json", **changes)
    said = call.mistake(broken)
    assert f"generation_config.json: {words}" in said
    assert f"the sampling defaults of {broken.path}" in said
    assert "model.generation_config=none" in said


@pytest.mark.parametrize("eos", ["x", [1, None], -3, 2.5, True, {}])
def test_ends_of_text_that_cannot_be(call, broken, eos):
    broken.json("generation_config.json", eos_token_id=eos)
    said = call.mistake(broken)
    assert f"{broken.path / 'generation_config.json'}: eos_token_id must be an id" in said


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"added_tokens_decoder": 3}, "added_tokens_decoder must map ids to tokens"),
        ({"added_tokens_decoder": {"x": {"content": "<z>"}}}, "'x' is {'content': '<z>'}"),
        ({"added_tokens_decoder": {"300": 3}}, "'300' is 3"),
        ({"added_tokens_decoder": {"300": {}}}, "'300' is {}"),
        ({"added_tokens_decoder": {"261": {"content": 5}}}, "'261' is {'content': 5}"),
        (
            {"added_tokens_decoder": {"261": {"content": "<z>", "special": "no"}}},
            "added_tokens_decoder must map ids to tokens",
        ),
        ({"added_tokens_decoder": {"300": {"content": "<z>"}}}, "do not belong together"),
        ({"bos_token": "a\ud800"}, "bos_token holds half a character"),
        ({"additional_special_tokens": ["\ud800"]}, "a special token holds half a character"),
        (
            {"added_tokens_decoder": {"261": {"content": "\ud800"}}},
            "token 261 holds half a character",
        ),
        ({"additional_special_tokens": 3}, "additional_special_tokens must be a list"),
        ({"extra_special_tokens": "abc"}, "extra_special_tokens must be a list"),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, dict) else "",
)
def test_tokens_that_cannot_be(call, broken, changes, words):
    broken.json("tokenizer_config.json", **changes)
    said = call.mistake(broken)
    assert words in said
    assert str(broken.path) in said
    assert "tokenizer_config.json" in said


@pytest.mark.parametrize("template", [3, [3], [{"name": "x"}], [{"name": [], "template": ""}]])
def test_templates_that_cannot_be(call, broken, template):
    (broken.path / "chat_template.jinja").unlink()
    broken.json("tokenizer_config.json", chat_template=template)
    said = call.mistake(broken)
    assert f"{broken.path}: tokenizer_config.json: chat_template must be text" in said


def test_a_template_that_is_no_text(call, broken):
    broken.write("chat_template.jinja", b"\xff\xfe")
    assert "chat_template.jinja: cannot be read" in call.mistake(broken)


def test_files_that_may_not_be_read(broken, monkeypatch):
    # as root, chmod keeps nobody from reading
    from pathlib import Path

    def refuse(self: Path, *given: object, **keywords: object) -> str:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(UserError, match=r"config\.json cannot be read: .*Permission denied"):
        LLM(broken.path, device="cpu")


def test_a_tokenizer_that_is_elsewhere_is_looked_for_under_its_own_key(call, broken, tmp_path):
    said = call.mistake(broken, f"model.tokenizer={tmp_path / 'nowhere'}")
    assert f"model.tokenizer: there is no folder or file {tmp_path / 'nowhere'}" in said


def test_a_folder_without_a_config(call, tmp_path):
    (tmp_path / "notes.txt").write_text("")
    said = call.mistake(tmp_path)
    assert f"{tmp_path} holds no config.json" in said
    assert "It holds: notes.txt" in said


@pytest.mark.parametrize("name", ["/nowhere/at/all", "x" * 5000, "a\0b", "~nobody/x", "."])
def test_a_model_that_is_not_there(call, name):
    assert "model.path" in call.mistake(name)


def test_an_override_is_held_to_the_same_rules(call, broken):
    said = call.mistake(broken, "model.config={vocab_size: many, surprise: 1}")
    assert "vocab_size must be a positive whole number, not 'many'" in said
    assert "'surprise' is not implemented" in said


def test_the_mistake_is_the_same_from_python(broken):
    broken.write("config.json", json.dumps([1]))
    with pytest.raises(UserError, match=r"config\.json must hold a JSON object, not list"):
        LLM(broken.path, device="cpu")
