"""Engines whose decode steps are graphs, and what tests look at in them.

On a CPU a recorder stands in for CUDA's graphs; with `--on cuda` they are real. A test module that
imports all names of this one has its fixtures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from core import LLM, SamplingParams
from tests.recorder import Recorder, install
from tests.tiny import greedy, save_tiny, tiny_model

__all__ = ["checkpoint", "engine", "expected", "recorders"]

DENSE = str(Path(__file__).parents[1] / "dense_attention.py")
LENGTHS = (1, 3, 4, 5, 8, 11, 16)
TOKENS = 10
PLAIN = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)


def prompts() -> list[list[int]]:
    return [
        torch.randint(0, 261, (n,), generator=torch.Generator().manual_seed(n)).tolist()
        for n in LENGTHS
    ]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    return greedy(tiny_model(), prompts(), TOKENS)


@pytest.fixture(autouse=True)
def recorders(device: str, monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    """Those that were made, where there is no CUDA."""
    return install(monkeypatch) if device == "cpu" else []


Make = Callable[..., LLM]


@pytest.fixture
def engine(checkpoint: Path, device: str) -> Iterator[Make]:
    made = []

    def make(
        runner: Any = "cuda_graph",
        attention: str = "dense",
        folder: Path = checkpoint,
        **settings: Any,
    ) -> LLM:
        options: dict[str, Any] = {
            "device": device,
            "dtype": "float32",
            "plugins": [DENSE],
            "attention": attention,
            "runner": runner,
            "cache": {"page_size": 4, "pages": 64, "check": True},
            "scheduler": {"use": "fcfs", "max_num_seqs": 11, "max_num_batched_tokens": 64},
            "executor": {"use": "local", "overlap": "on"},
        }
        for key, value in settings.items():
            both = isinstance(value, dict) and isinstance(options.get(key), dict)
            options[key] = options[key] | value if both else value
        made.append(LLM(folder, **options))
        return made[-1]

    yield make
    for llm in made:
        llm.close()


def worker(llm: LLM) -> Any:
    return llm.engine.executor._worker


def graphs(llm: LLM) -> Any:
    return worker(llm).runner._graphs


def answers(llm: LLM, params: Any = PLAIN) -> list[list[int]]:
    outputs = llm.generate(prompts(), params, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


def replays(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(requests, size) of each step that is replayed from now on."""
    seen = []
    own = graphs(llm)
    original = own.fitting

    def fitting(requests: int) -> Any:
        graph = original(requests)
        seen.append((requests, graph.static.size))
        return graph

    monkeypatch.setattr(own, "fitting", fitting)
    return seen
