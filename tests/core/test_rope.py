"""The rotary table against transformers, for every rope type and both spellings."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import transformers
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from core.rope import read_rope

HEAD_DIM, LONGEST = 16, 64
FACTORS = [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0]
KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 2.5},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
    "yarn-mscale": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "mscale": 0.7,
        "mscale_all_dim": 0.9,
        "beta_fast": 8,
        "beta_slow": 2,
        "truncate": False,
    },
    "yarn-factor": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "attention_factor": 1.3,
    },
    "yarn-bare": {"rope_type": "yarn", "factor": 4.0},
    "longrope": {
        "short_factor": FACTORS[::-1],
        "long_factor": FACTORS,
        "factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "proportional": {"partial_rotary_factor": 0.5, "factor": 2.0},
}


def rope_json(name: str, theta: float | None = 5e5) -> dict[str, Any]:
    found = {"rope_type": name, **KINDS[name]}
    return found if theta is None else {**found, "rope_theta": theta}


def read(raw: dict[str, Any], max_length: int | None = None, ignore: frozenset[str] = frozenset()):
    problems: list[str] = []
    rope, longest = read_rope(raw, HEAD_DIM, LONGEST, max_length, ignore, problems)
    return rope, longest, problems


def theirs(raw: dict[str, Any], length: int) -> torch.Tensor:
    """cos and sin of transformers for one sequence of `length` tokens [length, 2, D / 2]."""
    config = transformers.Qwen3Config.from_dict(
        {"head_dim": HEAD_DIM, "max_position_embeddings": LONGEST, **raw}
    )
    module = Qwen3RotaryEmbedding(config)
    cos, sin = module(torch.zeros(1), torch.arange(length)[None])
    return torch.stack([cos[0, :, : HEAD_DIM // 2], sin[0, :, : HEAD_DIM // 2]], 1)


@pytest.mark.parametrize("name", KINDS)
def test_the_table_is_that_of_transformers(name):
    raw = {"rope_parameters": rope_json(name)}
    rope, _, problems = read(raw)
    assert problems == []
    assert rope.table().dtype == torch.float32
    torch.testing.assert_close(rope.table(), theirs(raw, LONGEST), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", KINDS)
def test_the_old_spelling_means_the_same(name):
    new, _, _ = read({"rope_parameters": rope_json(name)})
    old = rope_json(name, theta=None)
    old["type"] = old.pop("rope_type")
    also, _, problems = read({"rope_theta": 5e5, "rope_scaling": old})
    assert problems == []
    assert also == new
    assert hash(also) == hash(new)


def test_types_differ_from_each_other():
    tables = [read({"rope_parameters": rope_json(name)}, 48)[0].table() for name in KINDS]
    for i, table in enumerate(tables):
        for other in tables[i + 1 :]:
            # up to its original length dynamic is default, and bare yarn is unlike both yarns
            same = torch.equal(table, other)
            assert same == (i == 0 and other is tables[list(KINDS).index("dynamic")])


@pytest.mark.parametrize("length", [65, 100, 256])
def test_dynamic_is_fixed_by_the_longest_length(length):
    raw = {"rope_parameters": rope_json("dynamic")}
    rope, longest, _ = read(raw, length)
    assert longest == 256
    torch.testing.assert_close(rope.table(), theirs(raw, length), rtol=0, atol=1e-5)
    assert not torch.allclose(rope.table()[:64], read(raw)[0].table())


@pytest.mark.parametrize("length", [12, 16, 17, 64])
def test_longrope_is_fixed_on_one_side_of_the_original_length(length):
    raw = {"rope_parameters": rope_json("longrope")}
    rope, _, _ = read(raw, length)
    torch.testing.assert_close(rope.table(), theirs(raw, length), rtol=0, atol=1e-6)


def test_rope_scaling_wins_over_rope_parameters_as_in_transformers():
    raw = {
        "rope_theta": 7e5,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    }
    rope, _, _ = read(raw)
    torch.testing.assert_close(rope.table(), theirs(raw, LONGEST), rtol=0, atol=1e-6)


@pytest.mark.parametrize("raw", [{}, {"rope_parameters": None}, {"rope_scaling": None}])
def test_without_theta_it_is_ten_thousand_and_said(raw, caplog):
    with caplog.at_level(logging.WARNING, "plait"):
        rope, _, problems = read(raw)
    assert problems == []
    assert rope.theta == 10_000
    assert "rope_theta" in caplog.text
    torch.testing.assert_close(rope.table(), theirs(raw, LONGEST), rtol=0, atol=1e-6)


def test_default_turns_whole_heads_whatever_the_partial_factor_says(caplog):
    raw = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    partial = {"partial_rotary_factor": 0.5, **raw}
    with caplog.at_level(logging.WARNING, "plait"):
        assert read(partial) == read(raw)
    assert "partial_rotary_factor" in caplog.text
    torch.testing.assert_close(read(partial)[0].table(), theirs(partial, LONGEST))


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"rope_type": "spiral"}, ["'spiral'", "yarn"]),
        ({"rope_type": ["yarn"]}, ["'yarn'"]),
        ({"rope_type": "linear"}, ["'factor'"]),
        ({"rope_type": "linear", "factor": "2"}, ["factor", "'2'"]),
        ({"rope_type": "linear", "factor": 0.5}, ["factor", "0.5"]),
        ({"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}, ["partial"]),
        ({"rope_type": "yarn", "factor": 4.0, "attn_factor": 0.8}, ["attn_factor", "ignore"]),
        ({"rope_type": "yarn", "factor": 4.0, "truncate": 1}, ["truncate"]),
        ({"rope_type": "llama3", "factor": 4.0}, ["low_freq_factor", "high_freq_factor"]),
        ({"rope_type": "longrope", "short_factor": [1], "long_factor": FACTORS}, ["short_factor"]),
        ({"rope_type": "default", "rope_theta": "1e6"}, ["rope_theta", "'1e6'"]),
        ({"rope_type": "default", "rope_theta": 0}, ["rope_theta"]),
        ({"rope_type": "proportional", "partial_rotary_factor": 2}, ["partial_rotary_factor"]),
        ({"full_attention": {"rope_type": "default"}}, ["full_attention"]),
        ("yarn", ["rope_parameters", "'yarn'"]),
    ],
)
def test_what_cannot_be_honoured_is_named(raw, words):
    whole = {"rope_theta": 1e4, **raw} if isinstance(raw, dict) else raw
    problems = read({"rope_parameters": whole})[2]
    assert problems
    for word in words:
        assert word in " ".join(problems)


def test_an_original_length_given_twice_must_agree():
    raw = {"rope_parameters": rope_json("yarn"), "original_max_position_embeddings": 32}
    assert "original_max_position_embeddings" in " ".join(read(raw)[2])
    raw["original_max_position_embeddings"] = 16
    assert read(raw)[2] == []


@pytest.mark.parametrize("name", ["attn_factor", "rope_parameters.attn_factor"])
def test_a_key_may_be_ignored_by_name(name):
    raw = {"rope_parameters": {**rope_json("yarn"), "attn_factor": 0.8}}
    plain = read({"rope_parameters": rope_json("yarn")})
    assert read(raw, ignore=frozenset([name])) == plain


@pytest.mark.parametrize(
    ("name", "max_length", "longest"),
    [
        ("default", None, 64),
        ("default", 1000, 64),
        ("yarn", 65, 64),  # 16 * 4: the factor is not applied twice
        ("yarn-bare", 65, 64),
        ("dynamic", None, 64),
        ("dynamic", 65, 256),
        ("llama3", 100, 128),
    ],
)
def test_positions_end_where_the_scaling_was_made_for(name, max_length, longest):
    assert read({"rope_parameters": rope_json(name)}, max_length)[1] == longest
