"""Random checkpoints load in transformers, and their tensors depend on seed and name alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from tools.make_checkpoint import SMALL, main


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    files = sorted(folder.glob("*.safetensors"))
    return {name: t for file in files for name, t in load_file(file).items()}


def test_the_small_one_answers_in_transformers(tmp_path: Path) -> None:
    main([str(tmp_path), "--dtype", "float32"])

    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, output_loading_info=True
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = tokenizer("Zwölf Boxkämpfer", return_tensors="pt").input_ids
    logits = model(ids).logits

    assert tokenizer.decode(ids[0]) == "Zwölf Boxkämpfer"
    assert logits.shape == (1, ids.shape[1], SMALL["vocab_size"])
    assert (report["missing_keys"], report["unexpected_keys"]) == (set(), set())
    assert logits.std() > 0.5


def test_fewer_layers_keep_the_other_tensors(tmp_path: Path) -> None:
    main([str(tmp_path / "three")])
    main([str(tmp_path / "one"), "--set", "num_hidden_layers=1"])
    three, one = tensors(tmp_path / "three"), tensors(tmp_path / "one")

    assert set(one) < set(three)
    assert all(torch.equal(one[name], three[name]) for name in one)


def test_another_seed_gives_other_weights(tmp_path: Path) -> None:
    main([str(tmp_path / "a")])
    main([str(tmp_path / "b"), "--seed", "1"])
    a, b = tensors(tmp_path / "a"), tensors(tmp_path / "b")

    assert not any(torch.equal(a[name], b[name]) for name in a)


def test_files_stay_below_their_limit(tmp_path: Path) -> None:
    main([str(tmp_path), "--file-gb", "1e-4", "--set", "tie_word_embeddings=false"])

    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    sizes = [file.stat().st_size for file in tmp_path.glob("*.safetensors")]
    assert len(sizes) > 2
    assert max(sizes) < 1.2e5
    assert set(index["weight_map"]) == set(tensors(tmp_path))
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in tensors(tmp_path).values())


def test_an_older_checkpoint_is_replaced_whole(tmp_path: Path) -> None:
    main([str(tmp_path), "--file-gb", "1e-4"])
    main([str(tmp_path)])

    assert [file.name for file in tmp_path.glob("model*")] == ["model.safetensors"]


def test_a_config_brings_no_tokenizer_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL | {"vocab_size": 32}))
    main([str(tmp_path / "out"), "--config", str(tmp_path)])

    assert not list((tmp_path / "out").glob("tokenizer*"))


def test_a_folder_without_tokenizer_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="holds no tokenizer files"):
        main([str(tmp_path / "out"), "--tokenizer", str(tmp_path)])
