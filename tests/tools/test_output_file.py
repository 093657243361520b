"""Scripts that write a file at their end say before their work that it cannot be written."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from tools import tiny_text, train_tiny


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bench_vllm", ["--model", "no-model", "--out"]),
        ("eval_tiny", ["no-model", "--report"]),
        ("tiny_golden", []),
        ("bench_linears", ["--record"]),
    ],
)
def test_a_file_that_cannot_be_written_is_told_first(
    name: str,
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if name == "bench_linears":
        pytest.importorskip("triton")
    tool = importlib.import_module(f"tools.{name}")
    words = [*words, f"{tmp_path}/none/file"]
    monkeypatch.setattr(sys, "argv", [name, *words])

    with pytest.raises(SystemExit) as ended:
        tool.main(*([words] if tool.main.__code__.co_argcount else []))

    assert ended.value.code == 2
    assert f"{tmp_path}/none/file cannot be written: No such file" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_fails_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(train_tiny, "prepare", lambda *_: pytest.fail("it began to train"))
    monkeypatch.setattr(tiny_text, "fetch", lambda *_: pytest.fail("it began to fetch"))

    with pytest.raises(NotADirectoryError):
        train_tiny.main(["--text", str(tmp_path), "--out", f"{tmp_path}/file/model"])
    with pytest.raises(NotADirectoryError):
        tiny_text.main([f"{tmp_path}/file/text", "--packages", str(tmp_path)])
