"""config.json of Qwen3: what is read, and what is refused by name."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers

from core.errors import UserError
from models.qwen3.config import Qwen3Config

SIZES = Path(__file__).parents[2] / "models" / "qwen3" / "sizes"
READ = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "tie_word_embeddings",
    "attention_bias",
)


def raw(**changes: Any) -> dict[str, Any]:
    small = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 301,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "rope_theta": 1e6,
    }
    return {k: v for k, v in {**small, **changes}.items() if v is not ...}


def refusal(**changes: Any) -> str:
    with pytest.raises(UserError) as caught:
        Qwen3Config.from_json(raw(**changes))
    return str(caught.value)


@pytest.mark.parametrize("folder", sorted(SIZES.iterdir()), ids=lambda p: p.name)
def test_published_shapes_read_as_transformers_reads_them(folder):
    data = json.loads((folder / "config.json").read_text())
    ours = Qwen3Config.from_json(data)
    theirs = transformers.Qwen3Config.from_dict(data)
    assert [getattr(ours, name) for name in READ] == [getattr(theirs, name) for name in READ]
    assert ours.rope.theta == theirs.rope_parameters["rope_theta"]
    assert ours.windows == (None,) * theirs.num_hidden_layers
    assert str(theirs.dtype) == f"torch.{ours.dtype}"
    assert ours.longest == data["max_position_embeddings"]
    transformers.GenerationConfig.from_pretrained(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"head_dim": ...},
        {"num_key_value_heads": None},
        {"num_key_value_heads": ..., "num_attention_heads": 32},
        {"max_position_embeddings": 128, "rms_norm_eps": 1e-5},
        {"attention_bias": True, "tie_word_embeddings": True},
    ],
)
def test_absent_keys_mean_what_they_mean_to_transformers(changes):
    ours = Qwen3Config.from_json(raw(**changes))
    theirs = transformers.Qwen3Config.from_dict(raw(**changes))
    assert [getattr(ours, name) for name in READ] == [getattr(theirs, name) for name in READ]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"sliding_window": 8},
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
        {"use_sliding_window": True, "max_window_layers": 0},
        {"use_sliding_window": True, "sliding_window": 8},
        {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0},
        {
            "use_sliding_window": True,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        {"layer_types": ["full_attention"] * 3},
    ],
)
def test_windows_are_those_of_transformers(changes):
    ours = Qwen3Config.from_json(raw(**changes))
    theirs = transformers.Qwen3Config.from_dict(raw(**changes))
    assert ours.windows == tuple(
        theirs.sliding_window if kind == "sliding_attention" else None
        for kind in theirs.layer_types
    )


def test_both_spellings_of_a_saved_config_are_equal(tmp_path):
    theirs = transformers.Qwen3Config.from_dict(raw(dtype="bfloat16"))
    theirs.architectures = ["Qwen3ForCausalLM"]
    theirs.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert "rope_theta" not in saved
    assert Qwen3Config.from_json(saved) == Qwen3Config.from_json(raw(torch_dtype="bfloat16"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vocab_size": "301"}, ["vocab_size", "'301'"]),
        ({"vocab_size": ...}, ["vocab_size is missing"]),
        ({"head_dim": None}, ["head_dim", "None"]),
        ({"head_dim": 7}, ["head_dim is 7"]),
        ({"hidden_size": 0}, ["hidden_size", "0"]),
        ({"intermediate_size": -4}, ["intermediate_size", "-4"]),
        ({"num_hidden_layers": 2.0}, ["num_hidden_layers", "2.0"]),
        ({"num_attention_heads": True}, ["num_attention_heads", "True"]),
        ({"num_key_value_heads": 3}, ["num_attention_heads is 4", "num_key_value_heads 3"]),
        ({"num_key_value_heads": ...}, ["num_key_value_heads 32 (absent)"]),
        ({"rms_norm_eps": "1e-6"}, ["rms_norm_eps", "'1e-6'"]),
        ({"tie_word_embeddings": "yes"}, ["tie_word_embeddings", "'yes'"]),
        ({"hidden_act": "gelu"}, ["hidden_act", "'gelu'"]),
        ({"model_type": "qwen2"}, ["model_type", "'qwen2'"]),
        ({"architectures": ["Qwen3MoeForCausalLM"]}, ["Qwen3MoeForCausalLM"]),
        ({"dtype": "int8"}, ["dtype", "'int8'"]),
        ({"eos_token_id": ["a"]}, ["eos_token_id"]),
        ({"layer_types": ["full_attention"]}, ["layer_types", "3"]),
        ({"layer_types": ["chunked_attention"] * 3}, ["'chunked_attention'"]),
        ({"layer_types": ["sliding_attention"] * 3}, ["use_sliding_window"]),
        ({"use_sliding_window": True, "sliding_window": 0}, ["sliding_window", "0"]),
        ({"max_window_layers": "1"}, ["max_window_layers"]),
        ({"quantization_config": "fp8"}, ["quantization_config"]),
        ({"rope_scaling": {"rope_type": "spiral"}}, ["'spiral'"]),
        ({"qk_layernorm": True}, ["'qk_layernorm'", "model.ignore_config: [qk_layernorm]"]),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(changes, words):
    message = refusal(**changes)
    for word in words:
        assert word in message
    assert len(message.splitlines()) == 1


def test_all_mistakes_are_told_at_once():
    message = refusal(vocab_size=0, hidden_act="relu", qk_layernorm=True, rope_scaling="x")
    assert len(message.splitlines()) == 4


def test_a_key_may_be_ignored_by_name():
    changed = raw(qk_layernorm=True, hidden_act="gelu")
    found = Qwen3Config.from_json(changed, ignore=["qk_layernorm", "hidden_act"])
    assert found == Qwen3Config.from_json(raw())


def test_remote_code_is_not_run_and_that_is_said(caplog):
    with caplog.at_level(logging.INFO, "plait"):
        found = Qwen3Config.from_json(raw(auto_map={"AutoModelForCausalLM": "evil.Model"}))
    assert found == Qwen3Config.from_json(raw())
    assert "auto_map" in caplog.text


def test_metadata_is_no_mistake():
    extra = {"transformers_version": "4.51.0", "unsloth_fixed": True, "bos_token_id": 1}
    assert Qwen3Config.from_json(raw(**extra)) == Qwen3Config.from_json(raw())


@pytest.mark.parametrize(
    ("value", "ids"), [(None, ()), (5, (5,)), ([5, 6], (5, 6)), (0, (0,)), ([], ())]
)
def test_ends_of_text(value, ids):
    assert Qwen3Config.from_json(raw(eos_token_id=value)).eos_ids == ids


@pytest.mark.parametrize(
    ("keys", "dtype"),
    [
        ({}, None),
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "float32", "torch_dtype": "bfloat16"}, "float32"),
        ({"dtype": "torch.float16"}, "float16"),
        ({"dtype": None, "torch_dtype": "float16"}, "float16"),
    ],
)
def test_the_type_of_the_weights(keys, dtype):
    assert Qwen3Config.from_json(raw(**keys)).dtype == dtype


def test_a_rank_narrows_fields_and_nothing_else_moves():
    whole = Qwen3Config.from_json(raw(head_dim=8, quantization_config={"quant_method": "fp8"}))
    narrow = replace(whole, num_attention_heads=2, num_key_value_heads=1, vocab_size=151)
    assert (narrow.head_dim, narrow.rope) == (8, whole.rope)
    assert hash(narrow) != hash(whole)
    assert narrow != whole


def test_reading_a_plain_config_imports_neither_torch_nor_transformers():
    code = (
        "import sys; from models.qwen3.config import Qwen3Config\n"
        f"Qwen3Config.from_json({raw()!r})\n"
        "print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=SIZES.parents[2]
    )
    assert done.stdout.strip() == "[]", done.stderr
