"""Reads a config.json key by key, and gathers what is wrong with them and what nobody read."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from core.errors import UserError
from core.rope import Rope, read_rope

log = logging.getLogger("plait")

DTYPES = ("float32", "bfloat16", "float16", "float64")
LARGEST = 2**31 - 1  # ids and positions are 32-bit numbers
MOST_LAYERS = 10_000  # a list of layers is made before any file is opened
ROPE = frozenset(
    {
        "original_max_position_embeddings",
        "partial_rotary_factor",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
    }
)
METADATA = frozenset(
    {
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
)
"""What says nothing about what a forward pass computes, whatever the model."""


class ConfigJson:
    """One config.json, for `Architecture.config`: read every key that means something, then
    `check`, which refuses the others.

    An absent key gets the default that is given, which should be transformers'. A key that is
    wrong gets some possible value, so that all others can be read as well, and a sentence in
    `problems`. Keys in `ignore` are not there.
    """

    def __init__(
        self,
        raw: Mapping[str, Any],
        architecture: str,
        model_type: str,
        family: str,
        ignore: Sequence[str] = (),
    ) -> None:
        """`family`: what messages call the models, such as "Qwen3"."""
        self.family, self.ignored = family, frozenset(ignore)
        self.raw = {key: value for key, value in raw.items() if key not in self.ignored}
        self.problems: list[str] = []
        self._read = set(METADATA)
        names = self.raw.get("architectures") or [architecture]
        if architecture not in names:
            self.problems.append(f"architectures is {names!r}, and this reads {architecture}.")
        elif self.raw.get("auto_map"):
            log.info(
                "config.json brings code of its own (auto_map); Plait's %s is used instead",
                self.family,
            )
        found = self.raw.get("model_type", model_type)
        if found != model_type:
            self.problems.append(f"model_type is {found!r}, and this reads {model_type!r}.")

    def get(self, key: str, default: Any = None) -> Any:
        """Whatever the key holds. It counts as read, as with all methods below."""
        self._read.add(key)
        return self.raw.get(key, default)

    def size(self, key: str, default: int | None = None, most: int = LARGEST) -> int:
        """A positive whole number; without a default it must be there."""
        value = self.get(key, default)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            if value <= most:
                return value
            self.problems.append(f"{key} is {value}, and no model has more than {most:,}.")
        elif key not in self.raw:
            self.problems.append(f"{key} is missing.")
        else:
            self.problems.append(f"{key} must be a positive whole number, not {value!r}.")
        return 2  # even and positive, so that other keys can still be checked

    def heads(self, kv_default: int | None = None) -> tuple[int, int]:
        """Query heads, and key/value heads: as many, where nothing says how many."""
        before = len(self.problems)
        heads = self.size("num_attention_heads")
        if self.get("num_key_value_heads", kv_default) is None:
            return heads, heads
        kv_heads = self.size("num_key_value_heads", kv_default)
        if heads % kv_heads and len(self.problems) == before:
            absent = "" if "num_key_value_heads" in self.raw else " (absent)"
            self.problems.append(
                f"num_attention_heads is {heads} and num_key_value_heads {kv_heads}{absent}: "
                "each key/value head must serve the same number of query heads."
            )
        return heads, kv_heads

    def head_dim(self, default: int) -> int:
        """Entries of a head: an even number, for rotation turns pairs."""
        size = self.size("head_dim", default)
        if size % 2:
            self.problems.append(f"head_dim is {size}: rotary embedding needs pairs.")
        return size

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            self.problems.append(f"{key} must be true or false, not {value!r}.")
        return bool(value)

    def silu(self) -> None:
        """Refuse a `hidden_act` that `core.layers.GatedActivation` does not compute."""
        found = self.get("hidden_act", "silu")
        if found not in ("silu", "swish"):
            self.problems.append(
                f"hidden_act {found!r} is not implemented; {self.family} models use 'silu'."
            )

    def eps(self, key: str = "rms_norm_eps", default: float = 1e-6) -> float:
        """What a norm adds to the mean square."""
        value = self.get(key, default)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1:
            return float(value)
        self.problems.append(f"{key} must be a small positive number, not {value!r:.40}.")
        return default

    def rope(self, head_dim: int, positions: int, max_length: int | None) -> tuple[Rope, int]:
        """The rotation, and the most positions that it is made for: see `core.rope.read_rope`."""
        self._read |= ROPE
        return read_rope(self.raw, head_dim, positions, max_length, self.ignored, self.problems)

    def eos_ids(self) -> tuple[int, ...]:
        """Ids that end a text: none, one or several."""
        value = self.get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if any(not isinstance(i, int) or isinstance(i, bool) or i < 0 for i in ids):
            self.problems.append(f"eos_token_id must be an id or a list of ids, not {value!r}.")
            return ()
        return tuple(ids)

    def dtype(self) -> str | None:
        """The type that the weights were saved in, such as "bfloat16"; None if it does not say."""
        new, old = self.get("dtype"), self.get("torch_dtype")
        key, value = ("torch_dtype", old) if new is None else ("dtype", new)
        if value is None or value == "auto":
            return None
        name = value.removeprefix("torch.") if isinstance(value, str) else value
        if name not in DTYPES:
            self.problems.append(f"{key} must be one of {', '.join(DTYPES)}, not {value!r}.")
            return None
        return str(name)

    def quantization(self) -> Mapping[str, Any] | None:
        """`quantization_config`, which the format that it names will read."""
        value = self.get("quantization_config")
        if value is not None and not isinstance(value, Mapping):
            self.problems.append(f"quantization_config must be an object, not {value!r}.")
            return None
        return value

    def check(self) -> None:
        """UserError with all problems, and all keys that were not read, one a line."""
        for key in self.raw:
            if key not in self._read and not key.startswith("unsloth_"):
                self.problems.append(
                    f"{key!r} is not implemented for {self.family}. If the model computes the same "
                    f"without it, say model.ignore_config: [{key}]."
                )
        if self.problems:
            raise UserError("\n".join(f"config.json: {problem}" for problem in self.problems))
