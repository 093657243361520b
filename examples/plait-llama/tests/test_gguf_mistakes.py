"""Files that cannot be run: a sentence for each that says what is wrong with it."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from gguf_files import add_tensor, gguf, write_gguf

from core.errors import UserError


@pytest.fixture
def told(logits_of):
    """What is said of a file, a line each."""

    def told(file, **settings) -> list[str]:
        with pytest.raises(UserError) as caught:
            logits_of(file, **settings)
        return str(caught.value).splitlines()

    return told


@pytest.fixture
def write(random_llama, tmp_path):
    return lambda **given: write_gguf(random_llama(), tmp_path / "model.gguf", **given)


@pytest.mark.parametrize("part", [0.0, 0.0001, 0.001, 0.01, 0.5, 0.999])
def test_a_file_that_is_cut_off(part, write, told) -> None:
    file = write()
    size = file.stat().st_size
    with file.open("r+b") as opened:
        opened.truncate(int(part * size))
    (line,) = told(file)
    assert line.startswith(f"{file} cannot be read as GGUF: ")
    assert line.endswith(f"Is it complete? It has {int(part * size):,} bytes.")


@pytest.mark.parametrize("entries", [10**6, 10**12, 2**63, 2**64 - 1])
def test_an_array_that_claims_more_entries_than_the_file_has_bytes(entries, told, tmp_path) -> None:
    file = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_array("tokenizer.ggml.scores", [0.5, 0.25])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    raw = file.read_bytes()
    count = (2).to_bytes(8, "little")
    assert raw.count(count) == 2  # that of the settings, and the array's
    file.write_bytes(raw[::-1].replace(count[::-1], entries.to_bytes(8, "big"), 1)[::-1])
    tracemalloc.start()
    (line,) = told(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "it ends before what it should have at byte" in line
    assert peak < 30e6


def test_a_file_that_is_something_else(told, tmp_path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\n" * 4)
    assert "cannot be read as GGUF: GGUF magic invalid" in told(file)[0]


def settings_file(path, **settings):
    writer = gguf.GGUFWriter(path, settings.pop("architecture", "llama"))
    for key, value in settings.items():
        writer.add_uint32(key.replace("__", "."), value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_a_model_of_another_architecture(told, tmp_path) -> None:
    file = settings_file(tmp_path / "model.gguf", architecture="qwen3")
    assert told(file) == [
        f"{file} holds a model of the architecture 'qwen3', and plait-llama reads 'llama'."
    ]


def test_one_part_of_several(told, tmp_path) -> None:
    file = settings_file(tmp_path / "model.gguf", split__count=3)
    assert "is one of 3 parts: put them together with" in told(file)[0]


def test_settings_that_are_missing_are_told_by_their_names_in_config_json(write, told) -> None:
    file = write(settings={"block_count": None, "embedding_length": None})
    assert told(file) == [
        f"{file}: hidden_size is missing.",
        f"{file}: num_hidden_layers is missing.",
    ]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"attention.sliding_window": 64}, "'llama.attention.sliding_window' is not implemented"),
        ({"expert_count": 8}, "'llama.expert_count' is not implemented for Llama"),
        (
            {"rope.dimension_count": 16},
            "heads have 32 entries and llama.rope.dimension_count is 16",
        ),
        ({"attention.value_length": 16}, "llama.attention.value_length is 16"),
        ({"rope.scaling.type": "spiral"}, "rope_type 'spiral' is not implemented"),
        ({"rope.scaling.type": "yarn"}, "factor must be a number of at least 1, not None"),
        ({"attention.head_count": 0}, "num_attention_heads must be a positive whole number"),
    ],
)
def test_settings_that_cannot_be_honoured(settings, sentence, write, told) -> None:
    file = write(settings=settings)
    line = told(file)[0]
    assert line.startswith(f"{file}: ")
    assert sentence in line


def test_a_setting_that_the_user_lets_go(write, logits_of) -> None:
    file = write(settings={"attention.sliding_window": 64, "expert_count": 0})
    ignored = ["llama.attention.sliding_window"]
    logits_of(file, model={"path": str(file), "ignore_config": ignored})


def test_scaling_that_is_told_twice(write, told) -> None:
    factors = {"rope_freqs.weight": np.ones(16, np.float32)}
    file = write(settings={"rope.scaling.type": "linear"}, extra=factors)
    assert "has both the rope scaling 'linear' and the tensor rope_freqs" in told(file)[0]


def test_tensors_that_are_missing_or_too_many(write, told) -> None:
    file = write(
        without=("blk.1.attn_k.weight", "output_norm.weight"),
        extra={"blk.0.attn_q_norm.weight": np.ones(32, np.float32)},
    )
    lines = told(file)
    assert len(lines) == 3
    for name in (
        "model.layers.1.self_attn.k_proj.weight is missing",
        "model.norm.weight is missing",
        "blk.0.attn_q_norm.weight is read by nobody",
    ):
        assert sum(name in line for line in lines) == 1, lines


def test_a_type_that_cannot_be_unpacked(random_llama, told, tmp_path) -> None:
    def add(writer, name, values, kind):
        if name != "blk.0.ffn_up.weight":
            return add_tensor(writer, name, values, kind)
        kind = gguf.GGMLQuantizationType.Q8_1
        block, size = gguf.GGML_QUANT_SIZES[kind]
        raw = np.zeros((values.shape[0], values.shape[1] // block * size), np.uint8)
        writer.add_tensor(name, raw, raw_dtype=kind)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gguf_files.add_tensor", add)
        file = write_gguf(random_llama(hidden_size=192), tmp_path / "model.gguf")
    assert told(file) == [
        f"{file}: tensor blk.0.ffn_up.weight is of type Q8_1, which the package gguf cannot "
        "unpack. Use a file of another quantization."
    ]
