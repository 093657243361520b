"""The same prompts give the same tokens, whichever way the engine comes to compute them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from core import LLM, SamplingParams
from tests.tiny import greedy, save_tiny, tiny_model

THREADS = str(Path(__file__).parents[1] / "threads.py")
LENGTHS = (1, 3, 4, 5, 8, 11, 16, 23)
TOKENS = 12


def prompts() -> list[list[int]]:
    """Lengths around multiples of the page size; the last two share their first 16 tokens."""
    made = [
        torch.randint(0, 261, (n,), generator=torch.Generator().manual_seed(n)).tolist()
        for n in LENGTHS
    ]
    made[-1][:16] = made[-2][:16]
    return made


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    return greedy(tiny_model(), prompts(), TOKENS)


def engine(checkpoint: Path, device: str, **settings) -> LLM:
    options = {
        "device": device,
        "dtype": "float32",
        "cache": {"page_size": 4, "pages": 64, "check": True},
        "scheduler": {"use": "fcfs", "max_num_seqs": 8, "max_num_batched_tokens": 64},
    }
    for key, value in settings.items():
        both = isinstance(value, dict) and isinstance(options.get(key), dict)
        options[key] = options[key] | value if both else value
    return LLM(checkpoint, **options)


def answers(llm: LLM, asked: list[list[int]] | None = None) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    outputs = llm.generate(asked or prompts(), params, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


def test_greedy_tokens_are_those_of_transformers(checkpoint, expected, device):
    with engine(checkpoint, device) as llm:
        assert answers(llm) == expected


def test_one_by_one_equals_batched_among_strangers(checkpoint, expected, device):
    with engine(checkpoint, device, cache={"prefix": False}) as llm:
        assert [answers(llm, [prompt])[0] for prompt in prompts()] == expected


def test_a_second_run_is_warm_and_equal(checkpoint, expected, device):
    with engine(checkpoint, device) as llm:
        answers(llm)
        before = llm.engine.statistics()["prefix_hits"]
        assert answers(llm) == expected
        hits = llm.engine.statistics()["prefix_hits"] - before
        # every full page of a prompt, but at least one token of each is computed
        assert hits == sum((n - 1) // 4 * 4 for n in LENGTHS)


def test_chunks_of_three_tokens(checkpoint, expected, device):
    with engine(checkpoint, device, scheduler={"max_num_batched_tokens": 3}) as llm:
        assert answers(llm) == expected
        assert llm.engine.statistics()["steps"] > sum(LENGTHS) // 3


def test_preempted_requests_lose_nothing(checkpoint, expected, device):
    with engine(checkpoint, device, cache={"pages": 14}) as llm:
        assert answers(llm) == expected
        assert llm.engine.statistics()["preemptions"] > 0


@pytest.mark.parametrize("scheduler", ["fcfs", "priority"])
def test_steps_planned_ahead(checkpoint, expected, device, scheduler):
    settings = {
        "executor": {"use": "local", "overlap": "on"},
        "scheduler": {"use": scheduler},
        "cache": {"pages": 14},
    }
    with engine(checkpoint, device, **settings) as llm:
        assert answers(llm) == expected
        assert llm.engine.statistics()["preemptions"] > 0


@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks_as_threads(checkpoint, expected, device, size):
    settings = {"plugins": [THREADS], "executor": "threads", "tensor_parallel_size": size}
    with engine(checkpoint, device, **settings) as llm:
        assert answers(llm) == expected


def test_two_ranks_in_two_processes(checkpoint, expected, device):
    if device != "cpu" and torch.cuda.device_count() < 2:
        pytest.skip("two ranks need two GPUs")
    with engine(checkpoint, device, tensor_parallel_size=2) as llm:
        assert answers(llm) == expected
