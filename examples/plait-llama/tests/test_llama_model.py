"""The model computes what transformers computes, whole and cut."""

from __future__ import annotations

import pytest

HALF = 16  # of a head
ROPES = {
    "default": {"rope_theta": 5e5},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "longrope": {
        "short_factor": [1.0 + i / HALF for i in range(HALF)],
        "long_factor": [2.0 + i for i in range(HALF)],
        "original_max_position_embeddings": 256,
    },
}


@pytest.mark.parametrize("kind", ROPES)
def test_rotations(kind, random_llama, logits_of, transformers_logits, same) -> None:
    rope = {"rope_type": kind, "rope_theta": 1e4} | ROPES[kind]
    folder = random_llama(rope_parameters=rope)
    same(logits_of(folder), transformers_logits(folder))


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_word_embeddings": True},
        {"attention_bias": True},
        {"mlp_bias": True},
        {"head_dim": None},
        {"num_key_value_heads": 6},
        {"num_key_value_heads": 1, "rms_norm_eps": 1e-2},
    ],
    ids=str,
)
def test_shapes(changes, random_llama, logits_of, transformers_logits, same) -> None:
    folder = random_llama(**changes)
    same(logits_of(folder), transformers_logits(folder))


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks(ranks, random_llama, logits_of, transformers_logits, same) -> None:
    folder = random_llama(attention_bias=True, mlp_bias=True)
    same(logits_of(folder, ranks), transformers_logits(folder))
