"""Files of prompts: what ends a line and what does not, and what is told of a wrong one."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from core.errors import UserError
from plugins.apps.generate import Generate
from plugins.apps.prompts_file import read_prompts

AT_LINES = "a \t\v\f\x1c\x1d\x1e\x85\u2028\u2029\r"  # where str.splitlines cuts, among others
TEXTS = st.one_of(st.text(AT_LINES, max_size=8), st.text(max_size=8))
ENDS = st.sampled_from(["\n", "\r\n"])


def prompts_in(data: bytes, name: str) -> list[Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        return read_prompts(path)


def prompt(text: str) -> bool:
    return bool(text.strip()) and not set("\n\ufeff") & set(text) and not text.endswith("\r")


@settings(max_examples=60)
@given(st.lists(TEXTS.filter(prompt), min_size=1, max_size=5), ENDS, st.booleans())
@example(["one\x0ctwo", "three\u2028four", "five\x85six"], "\r\n", False)
def test_a_line_of_text_is_one_prompt(texts: list[str], end: str, mark: bool) -> None:
    data = ("\ufeff" * mark + end.join([*texts, ""])).encode("utf-8")

    assert prompts_in(data, "p.txt") == texts
    assert prompts_in(data.removesuffix(end.encode()), "p.txt") == texts


@settings(max_examples=60)
@given(st.lists(TEXTS, min_size=1, max_size=5), ENDS, st.booleans())
@example(["three\u2028four"], "\n", False)
def test_a_line_of_json_is_one_prompt(texts: list[str], end: str, escaped: bool) -> None:
    lines = (json.dumps({"prompt": text}, ensure_ascii=escaped) + end for text in texts)

    assert prompts_in("".join(lines).encode("utf-8"), "p.jsonl") == texts


@settings(max_examples=60)
@given(st.binary(max_size=20), st.sampled_from(["p.txt", "p.jsonl"]))
@example(b"Gr\xfc\xdfe\n", "p.txt")
@example(b'{"prompt": "Gr\xfc\xdfe"}\n', "p.jsonl")
@example("UTF-16\n".encode("utf-16"), "p.txt")
def test_any_file_has_prompts_or_is_refused(data: bytes, name: str) -> None:
    try:
        found = prompts_in(data, name)
    except UserError:
        return
    assert found


def test_blank_lines_are_no_prompts(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("one\n\n{two}\n")

    options = Generate.Options(prompts_file=str(tmp_path / "p.txt"))
    assert Generate(options).prompts() == ["one", "{two}"]


def test_json_prompts_are_texts_or_ids(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "one"}\n{"prompt_token_ids": [1, 2]}\n')

    assert read_prompts(tmp_path / "p.jsonl") == ["one", [1, 2]]


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("p.jsonl", b'{"prompt": "one"}\nnothing\n', r"p\.jsonl:2 is no JSON object"),
        ("p.jsonl", b'["one"]\n', r"p\.jsonl:1 is no JSON object"),
        ("p.json", b"[" * 100_000, r"p\.json:1 is no JSON object"),
        ("p.txt", b"\n", "holds no prompt"),
        ("p.txt", b"one\r\nGr\xfc\xdfe\r\n", r"p\.txt:2 is no text in UTF-8.*0xfc"),
        ("other.txt", None, "cannot be read"),
    ],
)
def test_a_wrong_file_is_explained(
    tmp_path: Path, name: str, data: bytes | None, words: str
) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)

    with pytest.raises(UserError, match=words):
        read_prompts(tmp_path / name)
