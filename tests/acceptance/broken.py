"""Checkpoints with something wrong, and the command line called on them in this process.

Import the fixtures `call`, `broken` and `unread` where they are wanted.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from safetensors.torch import load_file, save_file

from core.run import main
from core.worker import Worker
from tests.tiny import save_tiny

PARAMS = "run.params={max_tokens: 4, temperature: 0}"


class Said(NamedTuple):
    """What a call of the command line ended with and wrote."""

    status: int
    out: str
    error: str


class Broken:
    """A copy of the tiny checkpoint, to be damaged."""

    def __init__(self, path: Path, source: Path) -> None:
        shutil.copytree(source, path, dirs_exist_ok=True)
        self.path = path

    def json(self, name: str, **changes: Any) -> None:
        """Set keys of one of its JSON files; None takes a key away."""
        file = self.path / name
        content = json.loads(file.read_text()) | changes
        file.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))

    def write(self, name: str, content: str | bytes) -> None:
        data = content.encode() if isinstance(content, str) else content
        (self.path / name).write_bytes(data)

    def tensors(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Change the tensors of model.safetensors."""
        file = self.path / "model.safetensors"
        tensors = dict(load_file(file))
        change(tensors)
        save_file(tensors, file, metadata={"format": "pt"})

    def header(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Change the header of model.safetensors, and leave the data as it is."""
        file = self.path / "model.safetensors"
        content = file.read_bytes()
        (size,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + size])
        change(header)
        text = json.dumps(header).encode()
        file.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])


class CommandLine:
    """`python -m core.run`, without the process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *words: str) -> Said:
        self.capsys.readouterr()
        status = main(list(words))
        return Said(status, *self.capsys.readouterr())

    def on(self, checkpoint: Path | Broken, *words: str, prompt: str | None = "hi") -> Said:
        """Generate four tokens on the CPU with a checkpoint; `words` come last."""
        path = checkpoint.path if isinstance(checkpoint, Broken) else checkpoint
        asked = [f"run.prompt={prompt}"] if prompt is not None else []
        return self(
            f"model.path={path}", "model.device=cpu", "run=generate", *asked, PARAMS, *words
        )

    def mistake(self, *given: Any, **keywords: Any) -> str:
        """The same, of what must be refused as a user's mistake: -> the sentences."""
        said = self.on(*given, **keywords)
        assert said.status == 2, said
        assert "Traceback" not in said.error
        assert said.error
        assert said.out == ""
        return said.error


def save_sharded(path: Path) -> Path:
    """The tiny checkpoint in several files with an index."""
    return save_tiny(path, max_shard_size="200KB")


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint, with nothing wrong. Not to be changed."""
    return save_tiny(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def broken(whole: Path, tmp_path: Path) -> Broken:
    """A copy of it."""
    return Broken(tmp_path / "model", whole)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when weights get memory: a mistake must be found before."""

    def never(*given: object, **keywords: object) -> None:
        raise AssertionError("memory was taken before the mistake was found")

    monkeypatch.setattr(Worker, "load", never)
