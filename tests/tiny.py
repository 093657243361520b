"""The tiny random Qwen3 checkpoint that tests run on, and the reference that they compare with.

600 KB, built in a tenth of a second. Its shapes are the ones that real checkpoints surprise with
(heads * head_dim is not the hidden size, grouped heads, an odd vocabulary, an intermediate size
that is no power of two); norm weights and biases are random, because ones and zeros hide a norm
or a bias that is missing; and weights are wide enough that greedy output does not repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers

from core.testing.checkpoints import vary

IM_END, END_OF_TEXT, IM_START, THINK, END_THINK = range(256, 261)
SPECIAL = ("<|im_end|>", "<|endoftext|>", "<|im_start|>")
ADDED = ("<think>", "</think>")

CHAT_TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
{%- endif %}"""


def tiny_config(**changes: Any) -> transformers.Qwen3Config:
    """The configuration, with `changes` to its fields."""
    fields: dict[str, Any] = {
        "vocab_size": 301,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 256,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "tie_word_embeddings": True,
        "initializer_range": 1.0,
    }
    return transformers.Qwen3Config(**(fields | changes))


def tiny_model(*, seed: int = 0, **changes: Any) -> transformers.Qwen3ForCausalLM:
    """Random weights in float32, the same for the same seed and changes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.Qwen3ForCausalLM(tiny_config(**changes)).float().eval()
        vary(model)
    return model.requires_grad_(False)


def tiny_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """One token a byte (ids 0..255), then the chat markers; ids from 261 on have no text."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    inner.decoder = tokenizers.decoders.ByteLevel()
    inner.add_special_tokens([tokenizers.AddedToken(text, special=True) for text in SPECIAL])
    inner.add_tokens([tokenizers.AddedToken(text, special=False) for text in ADDED])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token=SPECIAL[0],
        pad_token=SPECIAL[1],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def save_tiny(
    path: str | Path,
    *,
    seed: int = 0,
    eos: int | list[int] | None = None,
    dtype: torch.dtype | None = None,
    tokenizer: bool = True,
    generation: dict[str, Any] | None = None,
    max_shard_size: str = "50GB",
    **changes: Any,
) -> Path:
    """Write the checkpoint to the folder `path`, as `save_pretrained` lays it out.

    `eos` ends text in both config.json and generation_config.json (None: nothing does, so the
    length of an answer is known), `generation` are further keys of generation_config.json
    (temperature, top_k, ...), `max_shard_size` ("200KB") splits the weights into several files,
    and `changes` are those of `tiny_config`.
    """
    path = Path(path)
    for stale in path.glob("model*.safetensors*"):
        stale.unlink()
    model = tiny_model(seed=seed, **changes)
    model.config.eos_token_id = model.generation_config.eos_token_id = eos
    if generation:
        model.generation_config.update(do_sample=True, **generation)
    if dtype is not None:
        model.to(dtype)
    model.save_pretrained(path, max_shard_size=max_shard_size)
    if tokenizer:
        tiny_tokenizer().save_pretrained(path)
    return path


@torch.inference_mode()
def greedy(
    model: transformers.Qwen3ForCausalLM, prompts: Sequence[Sequence[int]], tokens: int
) -> list[list[int]]:
    """What transformers generates at temperature 0, never ending early: `tokens` ids a prompt."""
    plain = transformers.GenerationConfig(
        max_new_tokens=tokens, do_sample=False, eos_token_id=None, pad_token_id=END_OF_TEXT
    )
    answers = []
    for prompt in prompts:
        ids = torch.tensor([list(prompt)], device=model.device)
        whole = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=plain)
        answers.append(whole[0, len(prompt) :].tolist())
    return answers
