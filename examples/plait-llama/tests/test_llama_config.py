"""config.json of Llama: what is read, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import transformers
from plait_llama.config import LlamaConfig

from core.errors import UserError

LLAMA_3_1 = {  # as published for 8B, without what says nothing about the computation
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
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
    "mlp_bias",
)


@pytest.mark.parametrize("absent", [None, *READ[5:]])
def test_it_is_read_as_transformers_reads_it(absent: str | None) -> None:
    raw = {key: value for key, value in LLAMA_3_1.items() if key != absent}
    theirs = transformers.LlamaConfig.from_dict(raw)
    ours = LlamaConfig.from_json(raw)
    assert [getattr(ours, name) for name in READ] == [getattr(theirs, name) for name in READ]
    assert (ours.eos_ids, ours.dtype) == ((128001, 128008, 128009), "bfloat16")
    assert (ours.rope.kind, ours.rope.theta) == ("llama3", 500000.0)


def test_what_transformers_saves_is_read(tmp_path) -> None:
    theirs = transformers.LlamaConfig.from_dict(LLAMA_3_1 | {"head_dim": None})
    saved = theirs.to_diff_dict()
    assert LlamaConfig.from_json(saved) == LlamaConfig.from_json(LLAMA_3_1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "mistral"}, "model_type is 'mistral', and this reads 'llama'"),
        ({"sliding_window": 4096}, "'sliding_window' is not implemented for Llama"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not implemented; Llama models use 'silu'"),
        ({"hidden_size": 4112}, "head_dim must say how large a head is"),
        ({"num_key_value_heads": 7}, "each key/value head must serve the same number"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        LlamaConfig.from_json(LLAMA_3_1 | changes)
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
