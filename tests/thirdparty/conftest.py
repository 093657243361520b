"""A folder to install packages into, a checkpoint, and runs of the command line on it."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from core import plugins
from core.registry import registries
from core.run import main
from tests.thirdparty.installed import Site
from tests.tiny import greedy, save_tiny, tiny_model

PROMPTS = [list(b"The wind"), list(b"A"), list(b"Once upon a time")]
TOKENS = 8


@dataclass(frozen=True)
class Run:
    """How a run of the command line ended."""

    status: int
    out: str
    err: str
    tokens: list[list[int]] | None  # of each prompt, where there are answers


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def expected() -> list[list[int]]:
    """What transformers says."""
    return greedy(tiny_model(), PROMPTS, TOKENS)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Where packages can be installed; this process sees them, and forgets them afterwards."""
    folder = tmp_path / "site"
    folder.mkdir()
    before, modules = registries.snapshot(), set(sys.modules)
    for name, value in (("_imported", {}), ("_warned", set()), ("_current", None)):
        monkeypatch.setattr(plugins, name, value)
    monkeypatch.syspath_prepend(str(folder))
    yield Site(folder)
    registries.notes.clear()
    registries.restore(before)
    for name in set(sys.modules) - modules:
        if name.startswith("plait_"):
            del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def config(tmp_path: Path, checkpoint: Path, device: str) -> Callable[..., Path]:
    """Write a YAML file that answers the prompts, with these sections. -> its path."""

    def config(**sections: Any) -> Path:
        folder = tmp_path / "configs"
        folder.mkdir(exist_ok=True)
        prompts = folder / "prompts.jsonl"
        lines = [json.dumps({"prompt_token_ids": prompt}) for prompt in PROMPTS]
        prompts.write_text("\n".join(lines) + "\n")
        whole = {
            "model": {"path": str(checkpoint), "device": device, "dtype": "float32"},
            "cache": {"page_size": 4, "pages": 64, "check": True},
            "run": {
                "use": "generate",
                "prompts_file": str(prompts),
                "out": str(folder / "answers.jsonl"),
                "params": {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True},
            },
        }
        if "run" in sections:
            del whole["run"]
        for name, section in sections.items():
            both = isinstance(section, dict) and name in whole
            whole[name] = {**whole[name], **section} if both else section
        path = folder / "some.yaml"
        path.write_text(yaml.safe_dump(whole))
        return path

    return config


def answers(config: Path) -> list[list[int]] | None:
    file = config.parent / "answers.jsonl"
    if not file.exists():
        return None
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.unlink()
    return [line["outputs"][0]["token_ids"] for line in lines]


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Run `core.run` in this process, from a folder where nothing is."""

    def here(config: Path, *words: str) -> Run:
        monkeypatch.chdir(tmp_path)
        status = main([str(config), *words])
        out, err = capsys.readouterr()
        return Run(status, out, err, answers(config))

    return here


@pytest.fixture
def apart(site: Site, tmp_path: Path):
    """Run `python -m core.run` as a process, and see that none of its processes stay."""

    def apart(config: Path, *words: str) -> Run:
        mark = f"PLAIT_TEST={uuid.uuid4()}"
        done = subprocess.run(
            [sys.executable, "-m", "core.run", str(config), *words],
            env={**site.environment(), "PLAIT_TEST": mark.partition("=")[2]},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert processes(mark) == []
        return Run(done.returncode, done.stdout, done.stderr, answers(config))

    return apart


def processes(mark: str) -> list[int]:
    """The processes that have this line in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                if mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:  # it has ended, or is not ours
                continue
    return found
