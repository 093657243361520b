"""A tiny checkpoint, an engine's process that runs it, and the same engine in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from core import LLM
from tests.plugins.serve.engine.started import Started, configuration
from tests.tiny import IM_END, save_tiny


@pytest.fixture(scope="session")
def tiny_served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("served"), eos=[IM_END])


@pytest.fixture(scope="module")
def engine(tiny_served: Path) -> Iterator[Started]:
    started = Started(configuration(tiny_served), queue=64)
    yield started
    started.close()


@pytest.fixture(scope="module")
def offline(tiny_served: Path) -> Iterator[LLM]:
    with LLM.open(configuration(tiny_served)) as llm:
        yield llm
