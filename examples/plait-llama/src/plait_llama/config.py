"""The shape of a Llama model, read from config.json; whatever cannot be honoured is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.config_json import MOST_LAYERS, ConfigJson
from core.rope import Rope


@dataclass(frozen=True)
class LlamaConfig:
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
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    eos_ids: tuple[int, ...] = ()
    dtype: str | None = None  # "bfloat16", ...; None where config.json has none
    quantization: Mapping[str, Any] | None = field(default=None, hash=False)

    @classmethod
    def from_json(
        cls, raw: Mapping[str, Any], *, max_length: int | None = None, ignore: Sequence[str] = ()
    ) -> LlamaConfig:
        """Read config.json, in the spelling of transformers 4 or 5.

        An absent key means what it means to transformers. UserError with every key that is wrong
        or not implemented, one a line; keys in `ignore` are not looked at.
        """
        if raw.get("head_dim") is None:  # transformers writes null for the usual size
            raw = {key: value for key, value in raw.items() if key != "head_dim"}
        read = ConfigJson(raw, "LlamaForCausalLM", "llama", "Llama", ignore)
        read.get("pretraining_tp")  # the same sums in another order
        hidden = read.size("hidden_size")
        heads, kv_heads = read.heads()
        if "head_dim" not in raw and hidden % heads:
            read.problems.append(
                f"hidden_size is {hidden} and num_attention_heads {heads}, so head_dim must say "
                "how large a head is."
            )
        head_dim = read.head_dim(max(2, hidden // heads))
        positions = read.size("max_position_embeddings", 2048)
        read.silu()
        rope, longest = read.rope(head_dim, positions, max_length)
        config = cls(
            vocab_size=read.size("vocab_size"),
            hidden_size=hidden,
            intermediate_size=read.size("intermediate_size"),
            num_hidden_layers=read.size("num_hidden_layers", most=MOST_LAYERS),
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            max_position_embeddings=positions,
            longest=longest,
            rms_norm_eps=read.eps(),
            rope=rope,
            tie_word_embeddings=read.flag("tie_word_embeddings"),
            attention_bias=read.flag("attention_bias"),
            mlp_bias=read.flag("mlp_bias"),
            eos_ids=read.eos_ids(),
            dtype=read.dtype(),
            quantization=read.quantization(),
        )
        read.check()
        return config
