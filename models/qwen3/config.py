"""The shape of a Qwen3 model, read from config.json; whatever cannot be honoured is refused."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.errors import UserError
from core.rope import Rope, read_rope

log = logging.getLogger("plait")

DTYPES = ("float32", "bfloat16", "float16", "float64")
SIZES = (  # (key, what transformers takes when it is absent; None: it must be there)
    ("vocab_size", None),
    ("hidden_size", None),
    ("intermediate_size", None),
    ("num_hidden_layers", None),
    ("num_attention_heads", None),
    ("num_key_value_heads", 32),
    ("head_dim", 128),
    ("max_position_embeddings", 32768),
)
MOST = {"num_hidden_layers": 10_000}  # a list of layers is made before any file is opened
LARGEST = 2**31 - 1  # ids and positions are 32-bit numbers
READ = {key for key, _ in SIZES} | {
    "attention_bias",
    "dtype",
    "eos_token_id",
    "hidden_act",
    "layer_types",
    "max_window_layers",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "quantization_config",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "sliding_window",
    "tie_word_embeddings",
    "torch_dtype",
    "use_sliding_window",
}
METADATA = {  # says nothing about what a forward pass computes
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_name_or_path",
    "add_cross_attention",
    "architectures",
    "attention_dropout",
    "auto_map",
    "bos_token_id",
    "chunk_size_feed_forward",
    "decoder_start_token_id",
    "finetuning_task",
    "id2label",
    "initializer_range",
    "is_decoder",
    "is_encoder_decoder",
    "label2id",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "prefix",
    "problem_type",
    "return_dict",
    "sep_token_id",
    "task_specific_params",
    "tokenizer_class",
    "torchscript",
    "transformers_version",
    "use_bfloat16",
    "use_cache",
}


@dataclass(frozen=True)
class Qwen3Config:
    """Sizes of the model, or of one rank's share of it: a plan narrows some of the fields."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    longest: int  # positions that the model was made for
    rms_norm_eps: float
    rope: Rope
    windows: tuple[int | None, ...]  # of each layer: tokens that a token sees, itself included
    tie_word_embeddings: bool
    attention_bias: bool
    eos_ids: tuple[int, ...] = ()
    dtype: str | None = None  # "bfloat16", ...; None where config.json has none
    quantization: Mapping[str, Any] | None = field(default=None, hash=False)

    @classmethod
    def from_json(
        cls, raw: Mapping[str, Any], *, max_length: int | None = None, ignore: Sequence[str] = ()
    ) -> Qwen3Config:
        """Read config.json, in the spelling of transformers 4 or 5.

        An absent key means what it means to transformers. UserError with every key that is wrong
        or not implemented, one a line; keys in `ignore` are not looked at.
        """
        problems: list[str] = []
        accepted = frozenset(ignore)
        raw = {key: value for key, value in raw.items() if key not in accepted}
        _check_keys(raw, problems)
        sizes = {key: _size(raw, key, default, problems) for key, default in SIZES}
        heads, kv_heads = sizes["num_attention_heads"], sizes["num_key_value_heads"]
        if heads % kv_heads:
            problems.append(
                f"num_attention_heads is {heads} and num_key_value_heads {kv_heads}"
                f"{'' if 'num_key_value_heads' in raw else ' (absent)'}: "
                "each key/value head must serve the same number of query heads."
            )
        if sizes["head_dim"] % 2:
            problems.append(f"head_dim is {sizes['head_dim']}: rotary embedding needs pairs.")
        if raw.get("hidden_act", "silu") not in ("silu", "swish"):
            problems.append(
                f"hidden_act {raw['hidden_act']!r} is not implemented; Qwen3 models use 'silu'."
            )
        windows = _windows(raw, sizes["num_hidden_layers"], problems)
        rope, longest = read_rope(
            raw,
            sizes["head_dim"],
            sizes["max_position_embeddings"],
            max_length,
            accepted,
            problems,
        )
        config = cls(
            **sizes,
            longest=longest,
            rms_norm_eps=_eps(raw, problems),
            rope=rope,
            windows=windows,
            tie_word_embeddings=_flag(raw, "tie_word_embeddings", problems),
            attention_bias=_flag(raw, "attention_bias", problems),
            eos_ids=_eos(raw, problems),
            dtype=_dtype(raw, problems),
            quantization=_quantization(raw, problems),
        )
        if problems:
            raise UserError("\n".join(f"config.json: {problem}" for problem in problems))
        return config


def _check_keys(raw: Mapping[str, Any], problems: list[str]) -> None:
    """Keys that mean something to somebody, but nothing to this model."""
    names = raw.get("architectures") or ["Qwen3ForCausalLM"]
    if "Qwen3ForCausalLM" not in names:
        problems.append(f"architectures is {names!r}, and this reads Qwen3ForCausalLM.")
    elif raw.get("auto_map"):
        log.info("config.json brings code of its own (auto_map); Plait's Qwen3 is used instead")
    if raw.get("model_type", "qwen3") != "qwen3":
        problems.append(f"model_type is {raw['model_type']!r}, and this reads 'qwen3'.")
    for key in raw:
        if key not in READ | METADATA and not key.startswith("unsloth_"):
            problems.append(
                f"{key!r} is not implemented for Qwen3. If the model computes the same without "
                f"it, say model.ignore_config: [{key}]."
            )


def _size(raw: Mapping[str, Any], key: str, default: int | None, problems: list[str]) -> int:
    value = raw.get(key, default)
    if key == "num_key_value_heads" and value is None:
        value = raw.get("num_attention_heads")
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        if value <= (most := MOST.get(key, LARGEST)):
            return value
        problems.append(f"{key} is {value}, and no model has more than {most:,}.")
        return 2
    if key not in raw:
        problems.append(f"{key} is missing.")
    elif key in raw and (key != "num_key_value_heads" or raw[key] is not None):
        problems.append(f"{key} must be a positive whole number, not {raw[key]!r}.")
    return 2  # even and positive, so that other keys can still be checked


def _flag(raw: Mapping[str, Any], key: str, problems: list[str]) -> bool:
    value = raw.get(key, False)
    if not isinstance(value, bool):
        problems.append(f"{key} must be true or false, not {value!r}.")
    return bool(value)


def _eps(raw: Mapping[str, Any], problems: list[str]) -> float:
    value = raw.get("rms_norm_eps", 1e-6)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1:
        return float(value)
    problems.append(f"rms_norm_eps must be a small positive number, not {value!r:.40}.")
    return 1e-6


def _windows(raw: Mapping[str, Any], layers: int, problems: list[str]) -> tuple[int | None, ...]:
    """The window of each layer: from `layer_types`, or from max_window_layers on."""
    window = raw.get("sliding_window", 4096)
    if not _flag(raw, "use_sliding_window", problems):
        window = None
    elif window is not None and (
        not isinstance(window, int) or isinstance(window, bool) or window < 1
    ):
        problems.append(f"sliding_window must be a positive whole number, not {window!r}.")
        window = None
    types = raw.get("layer_types")
    if types is None:
        first = raw.get("max_window_layers", 28)
        if not isinstance(first, int) or isinstance(first, bool) or first < 0:
            problems.append(f"max_window_layers must be a whole number, not {first!r}.")
            first = layers
        return tuple(window if i >= first else None for i in range(layers))
    if not isinstance(types, list) or len(types) != layers:
        problems.append(f"layer_types must be a list of {layers} names, one a layer.")
        return (None,) * layers
    for name in sorted({str(t) for t in types} - {"full_attention", "sliding_attention"}):
        problems.append(f"layer_types: {name!r} is not implemented.")
    if "sliding_attention" in types and window is None:
        problems.append(
            "layer_types asks for sliding_attention, and use_sliding_window and sliding_window "
            "give no window."
        )
    return tuple(window if t == "sliding_attention" else None for t in types)


def _eos(raw: Mapping[str, Any], problems: list[str]) -> tuple[int, ...]:
    value = raw.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if any(not isinstance(i, int) or isinstance(i, bool) or i < 0 for i in ids):
        problems.append(f"eos_token_id must be an id or a list of ids, not {value!r}.")
        return ()
    return tuple(ids)


def _dtype(raw: Mapping[str, Any], problems: list[str]) -> str | None:
    key = "dtype" if raw.get("dtype") is not None else "torch_dtype"
    value = raw.get(key)
    if value is None or value == "auto":
        return None
    name = value.removeprefix("torch.") if isinstance(value, str) else value
    if name not in DTYPES:
        problems.append(f"{key} must be one of {', '.join(DTYPES)}, not {value!r}.")
        return None
    return str(name)


def _quantization(raw: Mapping[str, Any], problems: list[str]) -> Mapping[str, Any] | None:
    value = raw.get("quantization_config")
    if value is not None and not isinstance(value, Mapping):
        problems.append(f"quantization_config must be an object, not {value!r}.")
        return None
    return value
