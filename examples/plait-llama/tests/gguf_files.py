"""Writes small GGUF files of Llama models, as llama.cpp's converter lays them out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM, PreTrainedModel

gguf: Any = pytest.importorskip("gguf", reason="GGUF files need the package gguf")
pytest.importorskip("accelerate", reason="to read GGUF files, transformers needs accelerate")

NAMES = (
    ("model.layers.", "blk."),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
)
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content "
    "+ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% endif %}"
)
MERGES = ["t h", "th e", "Ġ the", "i n", "1 2", "Ġ w", "Ġw in", "Ġwin d", "3 4"]
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]


def write_gguf(
    folder: Path,
    file: Path,
    kind: str = "F32",
    *,
    settings: Mapping[str, Any] | None = None,
    without: tuple[str, ...] = (),
    extra: Mapping[str, np.ndarray] | None = None,
    tokenizer: Callable[[Any, int], None] | None = None,
) -> Path:
    """Write the checkpoint in `folder` with matrices of type `kind`, where their rows allow it.

    `settings` replace or add some of llama.*; None leaves one out. `without`: tensors not written.
    """
    model = AutoModelForCausalLM.from_pretrained(folder)
    writer = gguf.GGUFWriter(file, "llama")
    for key, value in (described(model) | dict(settings or {})).items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        if value is not None:
            add[type(value)](f"llama.{key}", value)
    (tokenizer or byte_level)(writer, model.config.vocab_size)
    state = {name: tensor.float().numpy() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    for name, values in state.items():
        heads = {"q_proj": model.config.num_attention_heads}
        heads["k_proj"] = model.config.num_key_value_heads
        part = name.split(".")[-2]
        if part in heads:
            values = permute(values, heads[part])
        for theirs, ours in NAMES:
            name = name.replace(theirs, ours)
        if name not in without:
            add_tensor(writer, name, values, kind)
    for name, values in (extra or {}).items():
        add_tensor(writer, name, values, "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def described(model: PreTrainedModel) -> dict[str, Any]:
    config = model.config
    return {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.dimension_count": config.head_dim,
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
        "vocab_size": config.vocab_size,
    }


def permute(values: np.ndarray, heads: int) -> np.ndarray:
    """Source: `LlamaModel.permute` of llama.cpp's convert_hf_to_gguf.py."""
    return (
        values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
        .swapaxes(1, 2)
        .reshape(values.shape)
    )


def add_tensor(writer: Any, name: str, values: np.ndarray, kind: str) -> None:
    wanted = gguf.GGMLQuantizationType[kind]
    if values.ndim < 2 or values.shape[-1] % gguf.GGML_QUANT_SIZES[wanted][0]:
        wanted = gguf.GGMLQuantizationType.F32
    try:
        writer.add_tensor(name, gguf.quantize(values, wanted), raw_dtype=wanted)
    except NotImplementedError:  # the library only unpacks it
        writer.add_tensor(name, made_up(values.shape, wanted), raw_dtype=wanted)


def made_up(shape: tuple[int, ...], kind: Any) -> np.ndarray:
    """Random blocks of Q4_K: two scales in half precision, then packed numbers."""
    assert kind == gguf.GGMLQuantizationType.Q4_K
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(0).integers(0, 256, (*shape[:-1], shape[-1] // block, size))
    raw = raw.astype(np.uint8)
    raw[..., :4] = np.array([1e-3, 7e-3], np.float16).view(np.uint8)
    return raw.reshape(*shape[:-1], -1)


def byte_level(writer: Any, size: int) -> None:
    """Bytes, a few merges, three special tokens, and padding up to `size`."""
    tokens = [*sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]
    kinds = [gguf.TokenType.NORMAL] * len(tokens)
    tokens += SPECIAL
    kinds += [gguf.TokenType.CONTROL] * len(SPECIAL)
    kinds += [gguf.TokenType.UNUSED] * (size - len(tokens))
    tokens += [f"[PAD{id}]" for id in range(len(tokens), size)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(tokens.index("<|endoftext|>"))
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
