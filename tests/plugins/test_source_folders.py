"""A checkpoint folder: one file, shards with an index, links, or a sentence about what is wrong."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from core.errors import UserError
from plugins.sources.folder import locate
from plugins.sources.mmap import MmapSource

anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=3) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


def shards(folder: Path, weight_map: object | None = None) -> Path:
    save_file({"a": torch.zeros(2), "b": torch.ones(3)}, folder / "one.safetensors")
    save_file({"c": torch.ones(1)}, folder / "two.safetensors")
    if weight_map is None:
        weight_map = {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def told(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        locate(folder)
    return str(caught.value).replace(str(folder), "DIR")


INDEX = "model.safetensors.index.json"


AT = f"DIR/{INDEX}"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"c": "three.safetensors"}, f"{AT} names 'three.safetensors', and there is no such file."),
        ({"c": "../two"}, f"{AT} names '../two', which is outside the folder."),
        ({"c": "/etc/passwd"}, f"{AT} names '/etc/passwd', which is outside the folder."),
        ({"c": "x/../../y"}, f"{AT} names 'x/../../y', which is outside the folder."),
        ({"c": ""}, f"{AT} names '', which is outside the folder."),
        ({"c": "n" * 300}, f"{AT} names {'n' * 300!r}, and there is no such file."),
        ({"c": 3}, f"DIR/{INDEX}: the file of 'c' is 3, not text."),
        ({"d": "one.safetensors"}, f"{AT} says that 'd' is in one.safetensors, but it is not."),
        ({"d": "one.safetensors", "e": "one.safetensors"},
         f"{AT} says that 'd' is in one.safetensors, but it is not. So are 1 more."),
    ],
)  # fmt: skip
def test_an_index_that_does_not_fit_its_files(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    weight_map = {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"}
    shards(tmp_path, weight_map | changes)
    assert told(tmp_path) == sentence


def test_a_tensor_that_the_index_does_not_know(tmp_path: Path) -> None:
    shards(tmp_path, {"a": "one.safetensors"})
    assert told(tmp_path) == (f"Tensor 'b' is in DIR/one.safetensors, but not in {INDEX}.")


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    shards(tmp_path)
    save_file({"c": torch.ones(1), "a": torch.zeros(2)}, tmp_path / "two.safetensors")
    assert told(tmp_path) == ("Tensor 'a' of DIR is in both one.safetensors and two.safetensors.")
    (tmp_path / INDEX).unlink()
    assert told(tmp_path) == (
        "Tensor 'a' is in one.safetensors and in two.safetensors of DIR. Remove the file that does "
        f"not belong there, or add {INDEX}."
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[]", f"{AT} has no table 'weight_map' from tensors to files."),
        ('{"weight_map": {}}', f"{AT} has no table 'weight_map' from tensors to files."),
        (
            '{"weight_map": {"a": "x", "a": "y"}}',
            f"{AT} cannot be read: 'a' is there twice.",
        ),
    ],
)
def test_an_index_that_is_none(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(text)
    assert told(tmp_path) == sentence


@settings(max_examples=60)
@given(st.binary(max_size=40) | anything.map(lambda value: json.dumps(value).encode())
       | st.dictionaries(st.text(max_size=3), st.text(max_size=12)).map(
           lambda table: json.dumps({"weight_map": table}).encode()))  # fmt: skip
def test_any_index_gives_a_user_error(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, INDEX).write_bytes(content)
        with pytest.raises(UserError):
            locate(Path(folder))


LOOKED = f"looked for {INDEX}, model.safetensors, or *.safetensors."
PICKLES = "pickles, which are never loaded because they can run code"


@pytest.mark.parametrize(
    ("names", "end"),
    [
        ([], ""),
        (["config.json"], ""),
        (["pytorch_model.bin"], f" *.bin is there ({PICKLES})."),
        (
            ["a.pt", "b.pth", "b.gguf"],
            f" *.pt is there ({PICKLES}); *.gguf is there (GGUF, which needs a plugin that reads "
            f"it); *.pth is there ({PICKLES}).",
        ),
    ],
)
def test_a_folder_without_weights_names_what_was_looked_for(
    names: list[str], end: str, tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"\x80\x04")
    assert told(tmp_path) == f"DIR holds no weights: {LOOKED}{end}"


def test_a_gguf_file_as_the_model(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(UserError, match=r"model.gguf is a GGUF file. Give a folder with "):
        MmapSource.open(path, {})
    with pytest.raises(UserError, match="There is no folder"):
        MmapSource.open(tmp_path / "nowhere", {})


def test_a_snapshot_of_symbolic_links_is_read(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    for file in list(shards(tmp_path).glob("*.*")):
        blob = tmp_path / "blobs" / file.stem
        file.rename(blob)
        (tmp_path / "snapshot" / file.name).symlink_to(f"../blobs/{file.stem}")
    assert set(locate(tmp_path / "snapshot")) == {"a", "b", "c"}


def test_an_index_with_many_names_is_read_in_one_pass(tmp_path: Path) -> None:
    """Looking through all of them for each took half a minute for these."""
    names = [f'"layers.{number}": "one.safetensors"' for number in range(60_000)]
    entries = ", ".join([*names, names[-1]])
    (shards(tmp_path) / INDEX).write_text('{"weight_map": {' + entries + "}}")
    began = time.process_time()
    assert told(tmp_path) == f"{AT} cannot be read: 'layers.59999' is there twice."
    assert time.process_time() - began < 5
