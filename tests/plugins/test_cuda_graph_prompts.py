"""Steps with prompts in the graph runner: the layers are replayed, the tokens stay the same.

On a CPU a recorder stands in for CUDA's graphs; with `--on cuda` they are real.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core import LLM, SamplingParams
from core.types import Batch, Limits
from plugins.runners.cuda_graph import runner as runner_module
from plugins.runners.cuda_graph.prompts import PromptGraphs, most_requests, token_sizes
from tests.recorder import install
from tests.tiny import greedy, save_tiny, tiny_model

DENSE = str(Path(__file__).parents[1] / "dense_attention.py")


def limits(seqs: int = 64) -> Limits:
    return Limits(seqs, 8192, 4096, 16, 100, 1000)


@given(most=st.integers(1, 20_000), tokens=st.integers(1, 20_000), requests=st.integers(1, 600))
def test_a_size_has_room_for_its_steps_and_is_not_much_too_large(most, tokens, requests):
    graphs = PromptGraphs.__new__(PromptGraphs)
    graphs.sizes, graphs.limits, graphs.longest_whole = token_sizes(most), limits(512), 2048
    requests = min(requests, tokens)
    size = graphs.fitting(tokens, requests)
    assert graphs.sizes == sorted(set(graphs.sizes))
    assert graphs.sizes[-1] == most
    if size is not None:
        assert tokens <= size <= max(4 * tokens, 16)
        assert size <= 1.125 * tokens or tokens < 2048 + 256
        assert requests <= most_requests(size, graphs.limits) or size > 2048
    elif requests == 1:
        assert tokens > most or most > 4 * tokens


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


WHOLE, SHORT, PIECES = 2048, 24, 0  # tokens of the longest step with attention in its graph


@pytest.fixture(params=[WHOLE, SHORT, PIECES], ids=["whole", "short", "pieces"])
def whole(request: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(runner_module, "WHOLE", request.param)
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=["dense", "triton"])
def engine(
    checkpoint: Path, device: str, whole: int, monkeypatch: pytest.MonkeyPatch, request: Any
) -> Iterator[Callable[..., LLM]]:
    if request.param == "triton" and device == "cpu":
        pytest.skip("it needs a GPU")
    if device == "cpu":
        install(monkeypatch)
    made = []

    def make(runner: Any = "cuda_graph", **settings: Any) -> LLM:
        options: dict[str, Any] = {
            "device": device,
            "dtype": "float32",
            "plugins": [DENSE],
            "attention": request.param,
            "runner": runner,
            "cache": {"page_size": 16, "pages": 64, "check": True},
            "scheduler": {"use": "fcfs", "max_num_seqs": 11, "max_num_batched_tokens": 256},
        }
        made.append(LLM(checkpoint, **options | settings))
        return made[-1]

    yield make
    for llm in made:
        llm.close()


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each step with prompts was replayed."""
    outcomes = []
    original = PromptGraphs.hidden

    def hidden(self: PromptGraphs, batch: Batch) -> Any:
        found = original(self, batch)
        outcomes.append(found is not None)
        return found

    monkeypatch.setattr(PromptGraphs, "hidden", hidden)
    return outcomes


def prompts(*lengths: int) -> list[list[int]]:
    made = torch.Generator().manual_seed(3)
    return [torch.randint(0, 261, (n,), generator=made).tolist() for n in lengths]


def answers(llm: LLM, asked: list[list[int]], **wishes: Any) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, **wishes)
    return [one.outputs[0].token_ids for one in llm.generate(asked, params, use_tqdm=False)]


ALL = (1, 2, 15, 16, 17, 30, 40)


def test_tokens_are_those_of_transformers(engine, seen):
    asked = prompts(*ALL)
    assert answers(engine(), asked) == greedy(tiny_model(), asked, 8)
    assert seen == [True]


def test_chunks_beside_decoding_are_replayed(engine, seen):
    asked = prompts(*ALL)
    small = {"use": "fcfs", "max_num_seqs": 11, "max_num_batched_tokens": 20}
    assert answers(engine(scheduler=small), asked) == greedy(tiny_model(), asked, 8)
    assert len(seen) > 3
    assert all(seen)


def test_a_prompt_whose_beginning_is_cached_is_replayed(engine, seen):
    first, llm = prompts(40), engine()
    longer = [first[0] + prompts(9)[0]]
    answers(llm, first)
    assert answers(llm, longer) == greedy(tiny_model(), longer, 8)
    assert llm.engine.statistics()["prefix_hits"] > 0
    assert seen == [True, True]


def test_longer_steps_run_eagerly(engine, seen):
    asked = prompts(30, 40)
    llm = engine(runner={"use": "cuda_graph", "prompts": 48})
    assert answers(llm, asked) == greedy(tiny_model(), asked, 8)
    assert answers(llm, asked[:1]) == greedy(tiny_model(), asked[:1], 8)
    assert seen == [False, True]


def test_none_is_captured_where_none_is_wanted(engine):
    llm = engine(runner={"use": "cuda_graph", "prompts": 0})
    assert llm.engine.executor._worker.runner._prompts is None
    assert answers(llm, prompts(5)) == greedy(tiny_model(), prompts(5), 8)


def test_prompt_logprobs_come_from_a_replay_too(engine, seen, whole):
    asked = prompts(21, 9)
    params = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=2)

    def found(llm: LLM) -> list[list[dict[int, float]]]:
        return [
            [{i: round(e.logprob, 3) for i, e in step.items()} for step in out.prompt_logprobs[1:]]
            for out in llm.generate(asked, params, use_tqdm=False)
        ]

    assert found(engine()) == found(engine("eager"))
    assert seen == [whole == WHOLE]  # pieces end with the sampled tokens


def test_little_memory_leaves_room_for_decoding_first(engine, seen, monkeypatch):
    monkeypatch.setattr(PromptGraphs, "measure", lambda self: 600 << 20)
    llm = engine(runner={"use": "cuda_graph", "memory": "1GiB"})
    assert llm.engine.executor._worker.runner._prompts is None
    assert llm.engine.executor._worker.runner.most_decodes == 11
    assert answers(llm, prompts(5)) == greedy(tiny_model(), prompts(5), 8)


def test_with_less_memory_shorter_steps_are_captured(engine, seen, monkeypatch):
    monkeypatch.setattr(PromptGraphs, "measure", lambda self: self.sizes[-1] << 20)
    llm = engine(runner={"use": "cuda_graph", "memory": "128MiB"})
    runner = llm.engine.executor._worker.runner
    assert runner._prompts.sizes[-1] == 64
    assert runner._prompts.capturing is runner._graphs.capturing
    asked = prompts(60, 70)
    assert answers(llm, asked) == greedy(tiny_model(), asked, 8)
    assert answers(llm, asked[:1]) == greedy(tiny_model(), asked[:1], 8)
    assert seen == [False, True]
