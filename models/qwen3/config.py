"""The shape of a Qwen3 model, read from config.json; whatever cannot be honoured is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.config_json import MOST_LAYERS, ConfigJson
from core.rope import Rope


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
        read = ConfigJson(raw, "Qwen3ForCausalLM", "qwen3", "Qwen3", ignore)
        layers = read.size("num_hidden_layers", most=MOST_LAYERS)
        heads, kv_heads = read.heads(kv_default=32)
        head_dim = read.head_dim(128)
        positions = read.size("max_position_embeddings", 32768)
        read.silu()
        rope, longest = read.rope(head_dim, positions, max_length)
        config = cls(
            vocab_size=read.size("vocab_size"),
            hidden_size=read.size("hidden_size"),
            intermediate_size=read.size("intermediate_size"),
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            max_position_embeddings=positions,
            longest=longest,
            rms_norm_eps=read.eps(),
            rope=rope,
            windows=_windows(read, layers),
            tie_word_embeddings=read.flag("tie_word_embeddings"),
            attention_bias=read.flag("attention_bias"),
            eos_ids=read.eos_ids(),
            dtype=read.dtype(),
            quantization=read.quantization(),
        )
        read.check()
        return config


def _windows(read: ConfigJson, layers: int) -> tuple[int | None, ...]:
    """The window of each layer: from `layer_types`, or from max_window_layers on."""
    window, first = read.get("sliding_window", 4096), read.get("max_window_layers", 28)
    if not read.flag("use_sliding_window"):
        window = None
    elif window is not None and (
        not isinstance(window, int) or isinstance(window, bool) or window < 1
    ):
        read.problems.append(f"sliding_window must be a positive whole number, not {window!r}.")
        window = None
    types = read.get("layer_types")
    if types is None:
        if not isinstance(first, int) or isinstance(first, bool) or first < 0:
            read.problems.append(f"max_window_layers must be a whole number, not {first!r}.")
            first = layers
        return tuple(window if i >= first else None for i in range(layers))
    if not isinstance(types, list) or len(types) != layers:
        read.problems.append(f"layer_types must be a list of {layers} names, one a layer.")
        return (None,) * layers
    for name in sorted({str(t) for t in types} - {"full_attention", "sliding_attention"}):
        read.problems.append(f"layer_types: {name!r} is not implemented.")
    if "sliding_attention" in types and window is None:
        read.problems.append(
            "layer_types asks for sliding_attention, and use_sliding_window and sliding_window "
            "give no window."
        )
    return tuple(window if t == "sliding_attention" else None for t in types)
