"""A GGUF file's settings as a config.json has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from core.errors import UserError
from plait_llama.header import ARCHITECTURE, Header

KEYS = {
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "rope.freq_base": "rope_theta",
}
ELSEWHERE = {
    "attention.value_length",
    "rope.dimension_count",
    "rope.scale_linear",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "tensor_data_layout",
    "vocab_size",
}
"""Settings that are read one by one below, or say nothing about what is computed."""
ZERO_MEANS_NONE = {"expert_count", "expert_used_count"}
DTYPES = {"F16": "float16", "BF16": "bfloat16"}
ENDS = ("eos", "eot", "eom")  # of a text, of a turn, and of a message that calls a tool


def config_of(header: Header, rope_factors: Sequence[float] | None) -> dict[str, Any]:
    """What config.json would say. Settings that nobody here knows keep their names, so that the
    model refuses them.

    `rope_factors`: the tensor rope_freqs, by which llama3 scaling divides the frequencies.
    """
    tensors = header.tensors
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "rope_theta": 10_000.0,
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in tensors,
        "eos_token_id": _ends(header.metadata),
    }
    for name, value in header.metadata.items():
        group, _, key = name.partition(".")
        if group != ARCHITECTURE or key in ELSEWHERE or (key in ZERO_MEANS_NONE and not value):
            continue
        config[KEYS.get(key, name)] = value
    if "token_embd.weight" in tensors:
        config["vocab_size"] = tensors["token_embd.weight"].shape[0]
    kinds = {tensor.kind for tensor in tensors.values() if len(tensor.shape) > 1}
    if len(kinds) == 1:
        config["dtype"] = DTYPES.get(kinds.pop())
    _check_heads(header, config)
    config["rope_scaling"] = _rope_scaling(header, config, rope_factors)
    return config


def _ends(metadata: Mapping[str, Any]) -> list[int]:
    found = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ENDS)
    return list(dict.fromkeys(id for id in found if id is not None))


def _check_heads(header: Header, config: Mapping[str, Any]) -> None:
    """UserError unless keys, values and rotation are all as wide as a head."""
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    if not isinstance(heads, int) or not isinstance(hidden, int) or not heads:
        return  # the model tells it
    size = config.get("head_dim", hidden // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if header.setting(key, size) != size:
            raise UserError(
                f"{header.path}: heads have {size} entries and {ARCHITECTURE}.{key} is "
                f"{header.setting(key)}; only as many are implemented."
            )


def _rope_scaling(
    header: Header, config: Mapping[str, Any], factors: Sequence[float] | None
) -> dict[str, Any] | None:
    kind = header.setting("rope.scaling.type", "none")
    factor = header.setting("rope.scaling.factor", header.setting("rope.scale_linear"))
    if factors is not None:
        if kind != "none":
            raise UserError(
                f"{header.path} has both the rope scaling {kind!r} and the tensor rope_freqs, "
                "which is not implemented."
            )
        # any factors on frequencies are a longrope that is the same for short and long texts
        return {
            "rope_type": "longrope",
            "short_factor": list(factors),
            "long_factor": list(factors),
            "attention_factor": 1.0,
            "original_max_position_embeddings": config.get("max_position_embeddings"),
        }
    if kind == "none":
        return None if factor in (None, 0, 1) else {"rope_type": "linear", "factor": factor}
    scaling = {"rope_type": kind, "factor": factor}
    original = header.setting("rope.scaling.original_context_length")
    if kind == "yarn" and original:
        scaling["original_max_position_embeddings"] = original
    return scaling
