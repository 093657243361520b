"""Steps with prompts in the graph runner, whose attentions stay outside of the graphs.

On a CPU a recorder stands in for CUDA's graphs; with `--on cuda` they are real.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from core.layers import Attention
from core.parallel.groups import ThreadCommunicator
from core.testing.running import assert_same
from models.qwen3.model import Qwen3Model
from plugins.runners.cuda_graph import pieces
from plugins.runners.cuda_graph import runner as runner_module
from plugins.runners.cuda_graph.pieces import Pieces
from plugins.runners.cuda_graph.prompt_buffers import PromptBuffers
from plugins.runners.cuda_graph.prompts import Whole, token_sizes
from tests.plugins.graph_engines import *  # noqa: F403
from tests.plugins.graph_engines import DENSE, PLAIN, TOKENS, answers, prompts, worker
from tests.recorder import Recorder, on_tape
from tests.tiny import greedy, save_tiny, tiny_model

THREADS = str(Path(__file__).parents[1] / "threads.py")
NOT_FOR_PROMPTS = "dense-static"  # a backend that cannot be captured in steps with prompts


def captured(llm: Any) -> dict[int, Whole | Pieces]:
    return worker(llm).runner._prompts._graphs  # type: ignore[no-any-return]


def replayed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the steps with prompts that are replayed in pieces from now on."""
    seen, original = [], Pieces.replay

    def replay(self: Pieces, batch: Any) -> Tensor:
        seen.append(len(self.static.tokens))
        return original(self, batch)

    monkeypatch.setattr(Pieces, "replay", replay)
    return seen


def test_prompts_of_a_backend_that_cannot_be_captured_with_them(engine, expected, monkeypatch):
    llm, seen = engine(attention=NOT_FOR_PROMPTS), replayed(monkeypatch)
    assert answers(llm) == expected
    assert {type(graph) for graph in captured(llm).values()} == {Pieces}
    assert seen == [48]
    [some] = {len(graph._calls) for graph in captured(llm).values()}
    assert some == len(worker(llm).model.model.layers)


def test_what_lies_behind_the_tokens_of_a_step_does_not_matter(engine, expected):
    llm = engine(attention=NOT_FOR_PROMPTS)
    with torch.inference_mode():
        for graph in captured(llm).values():
            for call in graph._calls:
                call.out.fill_(torch.nan)
    assert answers(llm) == expected
    assert answers(llm) == expected


def test_layers_with_windows_and_without(tmp_path, engine, monkeypatch, device):
    if device == "cpu":
        pytest.skip("what computes windows on a CPU cannot be captured")
    changes = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}
    monkeypatch.setattr(runner_module, "WHOLE", 0)
    seen = replayed(monkeypatch)
    llm = engine(attention="triton", folder=save_tiny(tmp_path, **changes))
    assert answers(llm) == greedy(tiny_model(**changes), prompts(), TOKENS)
    assert seen == [48]


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_replay_alike(engine, expected, monkeypatch, device, size):
    if device != "cpu":
        pytest.skip("ranks that are threads meet on the host")
    monkeypatch.setattr(ThreadCommunicator, "graphable", True)
    on_tape(monkeypatch, ThreadCommunicator, "all_reduce")
    seen = replayed(monkeypatch)
    llm = engine(
        attention=NOT_FOR_PROMPTS, plugins=[DENSE, THREADS], executor="threads",
        tensor_parallel_size=size,
    )  # fmt: skip
    assert answers(llm) == expected
    assert seen == [48] * size


def test_the_end_of_the_last_layer_is_computed_for_sampled_tokens(engine, expected, monkeypatch):
    llm, seen = engine(attention=NOT_FOR_PROMPTS), replayed(monkeypatch)
    rows = {size: len(graph._graphs[-1].result) for size, graph in captured(llm).items()}
    assert rows == {64: 11, 48: 11, 32: 11, 16: 11}  # as many as there may be requests
    assert answers(llm) == expected
    assert seen == [48]


def test_steps_of_which_more_is_asked_than_their_graphs_tell(engine, monkeypatch):
    asked = replace(PLAIN, prompt_logprobs=2)
    wanted = engine(runner="eager").generate(prompts(), asked, use_tqdm=False)
    llm, seen = engine(attention=NOT_FOR_PROMPTS), replayed(monkeypatch)
    assert_same(llm.generate(prompts(), asked, use_tqdm=False), wanted)
    assert seen == []


class ToTheEnd(Qwen3Model):
    """A model that computes every token to the end."""

    def forward(self, batch: Any) -> Tensor:
        return super().forward(replace(batch, wanted=None))


def test_models_that_compute_every_token_to_the_end(engine, expected, monkeypatch):
    monkeypatch.setattr("models.qwen3.model.Qwen3Model", ToTheEnd)
    llm, seen = engine(attention=NOT_FOR_PROMPTS), replayed(monkeypatch)
    assert {size: graph.whole for size, graph in captured(llm).items()} == dict.fromkeys(
        (64, 48, 32, 16), True
    )
    assert answers(llm) == expected
    assert seen == [48]


class Own(Attention):
    """Attention as in a model that asks the backend itself."""

    def forward(self, qkv: Tensor, q_norm: Any, k_norm: Any, rope: Tensor, batch: Any) -> Tensor:
        return super().forward(qkv, q_norm, k_norm, rope, replace(batch, apart=None))


@pytest.mark.parametrize("whole", [0, 24])
def test_layers_that_cannot_do_without_attention(engine, expected, monkeypatch, caplog, whole):
    monkeypatch.setattr("models.qwen3.model.Attention", Own)
    monkeypatch.setattr(runner_module, "WHOLE", whole)
    llm, seen = engine(), replayed(monkeypatch)
    assert answers(llm) == expected
    assert seen == []
    told = [r.getMessage() for r in caplog.records if "left out of the model" in r.getMessage()]
    assert len(told) == 1
    graphs = worker(llm).runner._prompts
    assert (graphs is None) == (whole == 0)
    assert graphs is None or graphs.sizes[-1] == whole


@pytest.mark.parametrize(
    "look",
    [
        lambda batch: batch.rows.index,
        lambda batch: batch.sample_index.long(),
        lambda batch: torch.arange(batch.attention.max_query),
        lambda batch: torch.arange(batch.attention.decodes),
        lambda batch: sum(batch.attention.context_lens),
    ],
    ids=["rows", "sample_index", "max_query", "decodes", "context_lens"],
)
def test_layers_that_look_at_requests(engine, expected, monkeypatch, look):
    class Looking(Attention):
        def forward(self, qkv: Tensor, *given: Any) -> Tensor:
            look(given[-1])
            return super().forward(qkv, *given)

    monkeypatch.setattr("models.qwen3.model.Attention", Looking)
    llm = engine(attention=NOT_FOR_PROMPTS)
    assert answers(llm) == expected
    assert worker(llm).runner._prompts is None


class Remembering(Attention):
    """Attention with a tensor that is made by the first step, and written by later ones."""

    def forward(self, qkv: Tensor, *given: Any) -> Tensor:
        if not hasattr(self, "largest"):
            self.largest = torch.zeros((), device=qkv.device)
        self.largest.copy_(qkv.amax())
        return super().forward(qkv, *given)


def test_layers_that_keep_what_a_step_has_made(engine, expected, monkeypatch):
    monkeypatch.setattr("models.qwen3.model.Attention", Remembering)
    measured = runner_module.tokens_worth_capturing

    def after_a_step(step: Any, limits: Any, capturing: Any) -> int:
        """As on CUDA, where the largest steps run before the runner prepares."""
        with torch.inference_mode():
            first = PromptBuffers(step, limits, 4, 1).padding(4, 1)
            step.plan(first)
            step.forward(first)
        return measured(step, limits, capturing)

    monkeypatch.setattr(runner_module, "tokens_worth_capturing", after_a_step)
    llm, seen = engine(attention=NOT_FOR_PROMPTS), replayed(monkeypatch)
    assert answers(llm) == expected
    assert seen == [48]


@pytest.mark.parametrize(
    ("launching", "computing", "longest"),
    [(1, 1, 64), (1, 2, 64), (1, 2.5, 48), (1, 8, 16), (1, 100, 1)],
)
def test_the_longest_step_is_one_that_waits_for_its_launches(
    engine, expected, monkeypatch, launching, computing, longest
):
    monkeypatch.setattr(pieces, "LEAST", 1)
    monkeypatch.setattr(pieces, "_times", lambda *_: (computing, launching))
    llm = engine(attention=NOT_FOR_PROMPTS)
    assert max(captured(llm)) == longest
    assert answers(llm) == expected


def test_steps_up_to_a_given_length_are_captured_however_long_they_take(
    engine, expected, monkeypatch
):
    monkeypatch.setattr(pieces, "_times", lambda *_: (1000, 1))
    llm = engine(runner={"use": "cuda_graph", "prompts": 50}, attention=NOT_FOR_PROMPTS)
    assert list(captured(llm)) == [50, 48, 32, 16]
    assert answers(llm) == expected


def test_what_is_measured_is_launching_and_all_of_it(monkeypatch):
    clock = iter((0, 30, 100, 200, 203, 210))  # began, launched, computed; twice
    monkeypatch.setattr(pieces.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(pieces, "no_attention", lambda *_: None)
    monkeypatch.setattr(pieces, "PromptBuffers", lambda *_: SimpleNamespace(padding=lambda *_: 0))
    limits: Any = SimpleNamespace(max_num_batched_tokens=8000)
    found = pieces.tokens_worth_capturing(None, limits, Recorder())  # type: ignore[arg-type]
    assert found == 2 * 8000 * 3 // 10


@given(most=st.integers(1, 100_000))
def test_long_steps_are_padded_by_no_more_than_an_eighth(most):
    for size, after in pairwise(token_sizes(most)):
        assert after - size <= max(size // 8, 256) or size < 2048
