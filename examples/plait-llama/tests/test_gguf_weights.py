"""GGUF files compute what transformers computes of them, and any region is as in the whole."""

from __future__ import annotations

import random

import pytest
import torch
from gguf_files import write_gguf
from plait_llama.weights import GgufSource
from transformers import AutoModelForCausalLM

from core.errors import UserError

WIDE = {"hidden_size": 768, "intermediate_size": 768}  # blocks of Q4_K have 256 entries
KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_1", "Q4_K")


@torch.inference_mode()
def read_by_transformers(file, ids):
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    return [model(torch.tensor([row])).logits[0] for row in ids]


@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_every_type(kind, random_llama, logits_of, ids, same, tmp_path) -> None:
    file = write_gguf(random_llama(**WIDE), tmp_path / "model.gguf", kind)
    same(logits_of(file), read_by_transformers(file, ids))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": True},
        {"attention_bias": True},
        {"mlp_bias": True},
        {"rms_norm_eps": 1e-2, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    ],
    ids=str,
)
@pytest.mark.parametrize("ranks", [1, 3])
def test_the_checkpoint_that_it_was_made_of(
    changes, ranks, random_llama, logits_of, transformers_logits, same, tmp_path
) -> None:
    folder = random_llama(**changes)
    file = write_gguf(folder, tmp_path / "model.gguf")
    same(logits_of(file, ranks), transformers_logits(folder))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K"])
def test_ranks_cut_packed_rows(kind, random_llama, logits_of, same, tmp_path) -> None:
    file = write_gguf(random_llama(**WIDE), tmp_path / "model.gguf", kind)
    whole = logits_of(file)
    for ranks in (2, 3):
        same(logits_of(file, ranks), whole)


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_K"])
def test_any_region_is_that_of_the_whole(kind, random_llama, tmp_path) -> None:
    folder = random_llama(attention_bias=True, **WIDE)
    source = GgufSource(write_gguf(folder, tmp_path / "model.gguf", kind))
    rng = random.Random(0)
    for name, (shape, _) in source.index().items():
        whole = source.read(name, tuple((0, size) for size in shape)).clone()
        for _ in range(5):
            box = tuple(tuple(sorted(rng.sample(range(size + 1), 2))) for size in shape)
            part = source.read(name, box)
            assert torch.equal(part, whole[tuple(slice(*extent) for extent in box)])
    source.close()


def test_only_the_rows_that_are_asked_for_are_read(random_llama, tmp_path) -> None:
    file = write_gguf(random_llama(), tmp_path / "model.gguf")
    source = GgufSource(file)
    (rows, columns), _ = source.index()["lm_head.weight"]
    stored = source.header.tensors["output.weight"]
    with file.open("r+b") as opened:
        opened.truncate(stored.start + 10 * stored.row_bytes)
    assert source.read("lm_head.weight", ((0, 10), (0, columns))).shape == (10, columns)
    with pytest.raises(UserError, match=r"tensor output.weight is cut off"):
        source.read("lm_head.weight", ((10, rows), (0, columns)))


def test_llama3_scaling_comes_as_a_tensor(
    random_llama, logits_of, transformers_logits, same, tmp_path
) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 1e4,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    folder = random_llama(rope_parameters=rope)
    model = AutoModelForCausalLM.from_pretrained(folder)
    plain = 1.0 / 1e4 ** (torch.arange(0, 32, 2) / 32)
    factors = plain / model.model.rotary_emb.inv_freq
    assert factors.max() > 7
    file = write_gguf(folder, tmp_path / "model.gguf", extra={"rope_freqs.weight": factors.numpy()})
    same(logits_of(file), transformers_logits(folder))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_other_scaling_is_in_the_settings(
    kind, ranks, random_llama, logits_of, transformers_logits, same, tmp_path
) -> None:
    original = {"original_max_position_embeddings": 64}
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0}
    folder = random_llama(rope_parameters=rope | (original if kind == "yarn" else {}))
    settings = {
        "rope.scaling.type": kind,
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 64,
    }
    file = write_gguf(folder, tmp_path / "model.gguf", settings=settings)
    same(logits_of(file, ranks), transformers_logits(folder))


@pytest.mark.parametrize(
    ("kind", "dtype"), [("F32", None), ("F16", "float16"), ("BF16", "bfloat16"), ("Q8_0", None)]
)
def test_a_file_of_one_plain_type_is_computed_in_it(kind, dtype, random_llama, tmp_path) -> None:
    file = write_gguf(random_llama(**WIDE), tmp_path / "model.gguf", kind)
    assert GgufSource(file).config().get("dtype") == dtype
