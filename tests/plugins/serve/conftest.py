"""Servers that several files of tests share: on a stand-in for an engine, and on the real one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core import LLM
from core.text import Tokenizer
from tests.plugins.serve.fake_engine import FakeEngine
from tests.plugins.serve.running import ROOT, Launched, Running, launched, serving
from tests.tiny import IM_END, save_tiny

CONFIG = ROOT / "configs" / "qwen3-serve.yaml"
WORDS = ("model.dtype=float32", "cache.pages=512", "cache.check=true")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose tokenizer has a token for each byte."""
    return save_tiny(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.open(folder)


@pytest.fixture(scope="module")
def module_fake(folder: Path) -> Iterator[Running]:
    with serving(FakeEngine(), folder) as running:
        yield running


@pytest.fixture
def fake(module_fake: Running) -> Running:
    """A server on a FakeEngine that repeats the prompt; a test may set `engine.answer` and more."""
    fresh = FakeEngine()
    for name in ("answer", "step", "asked", "busy", "dead", "hold", "cached"):
        setattr(module_fake.engine, name, getattr(fresh, name))
    return module_fake


@pytest.fixture(scope="session")
def server() -> Iterator[Launched]:
    """The command of the README, on the model that ships with Plait."""
    with launched(str(CONFIG), *WORDS) as running:
        yield running


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    """The same model in this process."""
    with LLM.from_config(ROOT / "configs" / "qwen3-tiny.yaml", *WORDS) as llm:
        yield llm


@pytest.fixture
def say(fake: Running, tokenizer: Tokenizer) -> Any:
    """Let the model say a text, and end."""

    def say(text: str) -> None:
        ids = [*tokenizer.encode(text), IM_END]
        fake.engine.answer = lambda prompt, params, index: ids

    return say
