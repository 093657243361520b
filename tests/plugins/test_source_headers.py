"""No file can do more than make the reader say what is wrong with it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save, save_file

from core.errors import UserError
from plugins.sources.headers import read_header

F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
AGAIN = " Download or write the file again."


def file_of(header: object, data: int = 8) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(data)


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_header(path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "clause"),
    [
        (b"", "it is empty"),
        (b"abc", "it is cut off: it has 3 bytes, no header"),
        (file_of({"a": F32})[:20], "it is cut off: its header has 61 bytes, and 12 are there"),
        (b"GGUF\3\0\0\0" + bytes(64), "it is a GGUF file, not safetensors"),
        (
            b"\xff" * 64,
            "it says that its header has 18446744073709551615 bytes, so it is not safetensors",
        ),
        (
            (100_000_001).to_bytes(8, "little") + bytes(64),
            "it says that its header has 100000001 bytes, so it is not safetensors",
        ),
        (file_of(b"[]"), "its header is not a JSON object"),
        (file_of(b' {"a": 1}'), "its header is not a JSON object"),
        (file_of(b'{"a": {}, "a": {}}'), "its header has 'a' twice"),
        (
            file_of({"a": F32, "__metadata__": {"format": 3}}),
            "its __metadata__ is not a table of text",
        ),
        (file_of({"a": 3}), "tensor 'a' does not have just dtype, shape and data_offsets"),
        (
            file_of({"a": F32 | {"more": 1}}),
            "tensor 'a' does not have just dtype, shape and data_offsets",
        ),
        (file_of({"a": F32 | {"dtype": "F31"}}), "tensor 'a' has the unknown type 'F31'"),
        (file_of({"a": F32 | {"dtype": ["F32"]}}), "tensor 'a' has the unknown type ['F32']"),
        (file_of({"a": F32 | {"shape": [-2]}}), "tensor 'a' has the impossible shape [-2]"),
        (file_of({"a": F32 | {"shape": [True]}}), "tensor 'a' has the impossible shape [True]"),
        (file_of({"a": F32 | {"shape": 2}}), "tensor 'a' has the impossible shape 2"),
        (
            file_of({"a": F32 | {"data_offsets": [0, 8, 8]}}),
            "tensor 'a' has the impossible offsets [0, 8, 8]",
        ),
        (
            file_of({"a": F32 | {"data_offsets": [8, 0]}}),
            "tensor 'a' lies at bytes 8 to 0, and the file holds 8",
        ),
        (
            file_of({"a": F32 | {"data_offsets": [4, 12]}}),
            "tensor 'a' lies at bytes 4 to 12, and the file holds 8",
        ),
        (
            file_of({"a": F32 | {"shape": [3]}}),
            "tensor 'a' takes 8 bytes, and F32 (3,) takes 12",
        ),
        (
            file_of({"a": F32, "b": F32 | {"data_offsets": [4, 12]}}, 12),
            "tensors 'a' and 'b' overlap",
        ),
        (
            file_of({"a": F32, "b": F32 | {"data_offsets": [12, 20]}}, 20),
            "bytes 8 to 12 before tensor 'b' belong to none",
        ),
        (file_of({"a": F32}, 9), "1 bytes behind the last tensor belong to none"),
    ],
)
def test_a_broken_file_is_told_by_file_and_tensor(
    content: bytes, clause: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    assert refusal(path) == f"{path}: {clause}.{AGAIN}"


@pytest.mark.parametrize("text", [b"{nonsense", b"\xff\xfe", b'{"a": ' + b"9" * 5000 + b"}"])
def test_a_header_that_is_not_json(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_of(text))
    assert refusal(path).startswith(f"{path}: its header is not JSON (")


def test_a_header_nested_too_deeply(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_of(b'{"a":' + b"[" * 100_000))
    assert refusal(path) == f"{path}: its header is nested too deeply to be one."
    path.write_bytes(file_of(b'{"a":' + b"[" * 400 + b"]" * 400 + b"}"))
    assert refusal(path).endswith(f"does not have just dtype, shape and data_offsets.{AGAIN}")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    assert refusal(tmp_path / "x").startswith(f"{tmp_path / 'x'} cannot be read: ")


def never_more_than_a_user_error(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.safetensors")
        path.write_bytes(content)
        try:
            header = read_header(path)
        except UserError:
            return
        # what we let through, the library that maps the file must accept, too
        with safe_open(path, framework="pt") as file:
            assert set(file.keys()) == set(header)


@settings(max_examples=100)
@given(st.binary(max_size=200))
def test_any_bytes_give_a_user_error_or_a_header(content: bytes) -> None:
    never_more_than_a_user_error(content)


numbers = st.integers(-2, 20) | st.sampled_from([2**31, 2**62, 2**63, 2**80]) | st.booleans()
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "U8", "F4", "x", 3, None]),
        "shape": st.lists(numbers, max_size=3) | numbers,
        "data_offsets": st.lists(numbers, min_size=1, max_size=3),
    }
)
anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=3) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@settings(max_examples=150)
@given(st.dictionaries(st.text(max_size=4), entries | anything, max_size=3), st.integers(0, 24))
def test_any_header_gives_a_user_error_or_a_header(header: dict[str, Any], data: int) -> None:
    never_more_than_a_user_error(file_of(header, data))


VALID = save({"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)})


@settings(max_examples=150)
@given(st.integers(0, len(VALID) - 1), st.binary(min_size=0, max_size=3), st.integers(0, 40))
def test_any_edit_of_a_good_file_gives_a_user_error_or_a_header(
    at: int, put: bytes, cut: int
) -> None:
    never_more_than_a_user_error(VALID[:at] + put + VALID[at + cut :])


def test_a_good_file_is_read_as_the_library_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensors = {"a": torch.zeros(2, 3), "b": torch.zeros((), dtype=torch.int64), "c": torch.ones(0)}
    save_file(tensors, path, metadata={"format": "pt"})
    assert {n: (t.shape, t.dtype) for n, t in read_header(path).items()} == {
        "a": ((2, 3), "F32"),
        "b": ((), "I64"),
        "c": ((0,), "F32"),
    }
