"""Two engines with vocabularies: the small trained model, and a random one of bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from core import LLM
from tests.tiny import save_tiny

if find_spec("llguidance") is None or find_spec("jsonschema") is None:
    collect_ignore_glob = ["test_*.py"]

TRAINED = Path(__file__).parents[3] / "models" / "qwen3" / "tiny"
Start = Callable[..., LLM]


def start(path: Path, **settings: Any) -> LLM:
    options: dict[str, Any] = {
        "device": "cpu",
        "dtype": "float32",
        "executor": {"use": "local", "threads": 1},
        "cache": {"page_size": 4, "pages": 2048, "check": True},
    }
    return LLM(path, **{**options, **settings})


@pytest.fixture(scope="session")
def byte_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # wide weights: the answers of a random model are as wild as they can be
    return save_tiny(tmp_path_factory.mktemp("guided"), max_position_embeddings=1024)


@pytest.fixture(scope="session")
def trained() -> Iterator[LLM]:
    with start(TRAINED) as llm:
        yield llm


@pytest.fixture(scope="session")
def wild(byte_checkpoint: Path) -> Iterator[LLM]:
    with start(byte_checkpoint) as llm:
        yield llm


@pytest.fixture(params=["trained", "wild"])
def llm(request: pytest.FixtureRequest) -> LLM:
    return request.getfixturevalue(request.param)
