"""Write a checkpoint of random weights in the Hugging Face layout, of any size.

    python tools/make_checkpoint.py OUT      # a few hundred KB, with a tokenizer of bytes
    python tools/make_checkpoint.py OUT --config models/qwen3/sizes/Qwen3-0.6B --tokenizer DIR
    python tools/make_checkpoint.py OUT --config DIR --set num_hidden_layers=2 --dtype float32

Its text is noise, but its speed and its memory are those of a trained model. Every tensor is drawn
from a seed and its own name, so that it does not depend on the number of layers.
"""

from __future__ import annotations

import argparse
import json
import shutil
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
import yaml
from safetensors.torch import save_file

# heads * head_dim is not the hidden size, heads are grouped, the vocabulary is odd
SMALL = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 301,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "rope_theta": 1000000,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": True,
    "eos_token_id": 257,
}
SPECIAL = ("<|endoftext|>", "<|im_end|>", "<|im_start|>")  # ids 256 to 258
CHAT_TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
TOKENIZER_FILES = ("tokenizer*", "vocab.json", "merges.txt", "special_tokens_map.json", "*.jinja")


def byte_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """A token for each byte, and the marks of a chat."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    model = tokenizers.models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[])
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    inner.decoder = tokenizers.decoders.ByteLevel()
    inner.add_special_tokens([tokenizers.AddedToken(text, special=True) for text in SPECIAL])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token=SPECIAL[1],
        pad_token=SPECIAL[0],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def shapes(raw: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The tensors of a checkpoint with this config.json, as transformers names them."""
    config = transformers.AutoConfig.for_model(**raw)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    # a tied tensor is stored once, under the name that comes first
    return {name: tuple(p.shape) for name, p in model.named_parameters(remove_duplicate=True)}


def draw(
    name: str, shape: tuple[int, ...], seed: int, std: float, dtype: torch.dtype
) -> torch.Tensor:
    """Matrices normal around 0; vectors around 1, so that a missing or swapped norm shows."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + zlib.crc32(name.encode()))
    mean, spread = (1.0, 0.1) if len(shape) == 1 else (0.0, std)
    return torch.empty(shape, dtype=dtype).normal_(mean, spread, generator=generator)


def files(sizes: dict[str, tuple[int, ...]], itemsize: int, limit: float) -> Iterator[list[str]]:
    """Names of the tensors, a list for each file of at most `limit` bytes."""
    names: list[str] = []
    used = 0
    for name, shape in sizes.items():
        nbytes = torch.Size(shape).numel() * itemsize
        if names and used + nbytes > limit:
            yield names
            names, used = [], 0
        names.append(name)
        used += nbytes
    yield names


def write(
    out: Path,
    raw: dict[str, Any],
    *,
    seed: int = 0,
    std: float = 0.02,
    dtype: torch.dtype = torch.bfloat16,
    file_bytes: float = 4e9,
) -> int:
    """Write weights, index, config.json and generation_config.json to `out`. -> parameters."""
    out.mkdir(parents=True, exist_ok=True)
    for old in (*out.glob("model*.safetensors*"), *out.glob("config.json")):
        old.unlink()
    sizes = shapes(raw)
    parts = list(files(sizes, dtype.itemsize, file_bytes))
    where: dict[str, str] = {}
    for number, names in enumerate(parts, 1):
        file = (
            "model.safetensors"
            if len(parts) == 1
            else f"model-{number:05}-of-{len(parts):05}.safetensors"
        )
        tensors = {name: draw(name, sizes[name], seed, std, dtype) for name in names}
        save_file(tensors, out / file, metadata={"format": "pt"})
        where |= dict.fromkeys(names, file)
    total = sum(torch.Size(shape).numel() for shape in sizes.values())
    if len(parts) > 1:
        index = {"metadata": {"total_size": total * dtype.itemsize}, "weight_map": where}
        (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    ends = {"eos_token_id": raw["eos_token_id"]} if "eos_token_id" in raw else {}
    (out / "generation_config.json").write_text(json.dumps(ends, indent=1))
    # last, because its presence says that the checkpoint is whole
    config = raw | {"torch_dtype": str(dtype).removeprefix("torch.")}
    (out / "config.json").write_text(json.dumps(config, indent=1))
    return total


def add_tokenizer(out: Path, name: str) -> None:
    """The byte tokenizer, none, or a copy of another folder's tokenizer files."""
    if name == "bytes":
        byte_tokenizer().save_pretrained(out)
    elif name != "none":
        found = [file for pattern in TOKENIZER_FILES for file in Path(name).glob(pattern)]
        if not found:
            raise SystemExit(f"{name} holds no tokenizer files")
        for file in found:
            shutil.copy(file, out)


def main(words: Iterable[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--config", type=Path, help="config.json, or its folder; default: small")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings")
    parser.add_argument("--tokenizer", help="bytes, none, or a folder to copy from")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--std", type=float, help="spread of the matrices; small models: 0.4")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--file-gb", type=float, default=4.0, help="most that one file holds")
    given = parser.parse_args(list(words) if words is not None else None)
    raw = dict(SMALL)
    if given.config:
        path = given.config / "config.json" if given.config.is_dir() else given.config
        raw = json.loads(path.read_text())
    for setting in given.settings:
        key, _, value = setting.partition("=")
        raw[key] = yaml.safe_load(value)
    std = given.std if given.std is not None else 0.02 if given.config else 0.4
    total = write(
        given.out,
        raw,
        seed=given.seed,
        std=std,
        dtype=getattr(torch, given.dtype),
        file_bytes=given.file_gb * 1e9,
    )
    add_tokenizer(given.out, given.tokenizer or ("none" if given.config else "bytes"))
    print(f"{given.out}: {total:,} random parameters in {given.dtype}")


if __name__ == "__main__":
    main()
