"""An engine made with vLLM's words, and what transformers says of the same prompt."""

from __future__ import annotations

from pathlib import Path

import pytest

from core import LLM
from tests.acceptance.asking import IDS
from tests.tiny import IM_END, greedy, save_tiny, tiny_model


@pytest.fixture(scope="package")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generation = {"temperature": 0.6, "top_k": 20}
    return save_tiny(tmp_path_factory.mktemp("tiny"), eos=[IM_END], generation=generation)


@pytest.fixture(scope="package")
def expected() -> list[int]:
    return greedy(tiny_model(), [IDS], 6)[0]


@pytest.fixture(scope="module")
def llm(checkpoint: Path, device: str):
    with LLM(checkpoint, device=device, dtype="float32", block_size=4, max_num_seqs=8) as made:
        yield made
