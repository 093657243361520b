"""Small random checkpoints of families that transformers knows, and what it makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from core.json_files import read_json

SIZES = {
    "vocab_size": 301,
    "hidden_size": 60,
    "intermediate_size": 90,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
}
"""What surprises: heads * head_dim is not the hidden size, and little here is a power of two.
Weights are so wide that tokens matter; where a family has no such field, it is left out."""

BIASED = {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}
"""What else a checkpoint may have, beside SIZES."""

WINDOWED = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
"""Windows shorter than the sequences; where a family can tell, the first layer has none."""

REFERENCE = "reference.safetensors"  # ids [N, T] and logits [N, T, V], beside the weights


def vary(model: nn.Module) -> None:
    """Random norm weights and biases, in place: ones and zeros would hide those that are missing.

    Draws from torch's own generator.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(torch.rand_like(parameter) + 0.5)
            elif name.endswith("bias"):
                parameter.copy_(torch.randn_like(parameter))


def write_random(architecture: str, folder: Path, *, seed: int = 0, **changes: Any) -> Path | None:
    """Write a checkpoint of `SIZES` in float32; None if transformers has no such architecture."""
    import transformers

    family = getattr(transformers, architecture, None)
    if family is None or getattr(family, "config_class", None) is None:
        return None
    known = family.config_class().to_dict()
    fields = {key: value for key, value in {**SIZES, **changes}.items() if key in known}
    config = family.config_class(**fields, eos_token_id=None, bos_token_id=None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = family(config).float().eval()
        vary(model)
    model.save_pretrained(folder)
    return folder


def described(folder: Path) -> dict[str, Any]:
    """config.json of a checkpoint. UserError if it cannot be read."""
    return read_json(folder / "config.json")


def sequences(vocab_size: int, seed: int = 0) -> list[list[int]]:
    """Token ids of a few lengths, around the edges of pages of 4."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(0, vocab_size, (count,), generator=generator).tolist()
        for count in (23, 1, 8, 17, 4)
    ]


@torch.inference_mode()
def reference_logits(
    folder: Path, asked: Sequence[Sequence[int]]
) -> tuple[list[list[int]], list[Tensor]] | None:
    """Sequences, and their logits [T, V] in float32: those of the folder's reference.safetensors,
    or of `asked` by transformers. None if there is neither.
    """
    if (folder / REFERENCE).is_file():
        from safetensors.torch import load_file

        stored = load_file(folder / REFERENCE)
        return stored["ids"].tolist(), [logits.float() for logits in stored["logits"]]
    import transformers

    if described(folder).get("model_type") not in transformers.CONFIG_MAPPING:
        return None
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    listed = [list(ids) for ids in asked]
    return listed, [model(torch.tensor([ids])).logits[0] for ids in listed]
