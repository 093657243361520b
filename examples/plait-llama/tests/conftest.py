"""Random Llama checkpoints, and their logits on any number of ranks."""

from __future__ import annotations

import os

# before torch and tokenizers are imported: they read these once
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from core.testing.checkpoints import reference_logits, sequences, write_random
from core.testing.ranks import Ranks

VOCABULARY = 301


@pytest.fixture(scope="session")
def ids() -> list[list[int]]:
    return sequences(VOCABULARY)


@pytest.fixture
def random_llama(tmp_path: Path) -> Callable[..., Path]:
    """Write a checkpoint with six heads and three for keys and values."""

    def write(**changes: Any) -> Path:
        sizes = {"num_key_value_heads": 3, "num_hidden_layers": 2}
        folder = write_random("LlamaForCausalLM", tmp_path / "random", **(sizes | changes))
        assert folder is not None
        return folder

    return write


@pytest.fixture
def logits_of(ids: list[list[int]]) -> Callable[..., list[Tensor]]:
    """Plait's logits of the model at a path."""

    def logits_of(path: Path, ranks: int = 1, **settings: Any) -> list[Tensor]:
        return Ranks(path, ranks, plugins=["plait_llama"], **settings).logits(ids)

    return logits_of


@pytest.fixture
def transformers_logits(ids: list[list[int]]) -> Callable[[Path], list[Tensor]]:
    def transformers_logits(folder: Path) -> list[Tensor]:
        found = reference_logits(folder, ids)
        assert found is not None
        return found[1]

    return transformers_logits


@pytest.fixture
def same() -> Callable[[list[Tensor], list[Tensor]], None]:
    """Equal in float32, whose sums may have another order."""

    def same(found: list[Tensor], expected: list[Tensor]) -> None:
        for ours, theirs in zip(found, expected, strict=True):
            worst = float((ours - theirs).abs().max() / theirs.abs().max())
            assert worst < 1e-4, f"off by {worst:.1e} of the largest logit"

    return same
