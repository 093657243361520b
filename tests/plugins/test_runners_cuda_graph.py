"""The graph runner in an engine: the tokens of the eager runner, whatever the steps are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from core import SamplingParams
from core.parallel.groups import ThreadCommunicator
from plugins.runners.cuda_graph.runner import CudaGraph
from tests.plugins.graph_engines import *  # noqa: F403
from tests.plugins.graph_engines import DENSE, LENGTHS, TOKENS, answers, replays, worker

THREADS = str(Path(__file__).parents[1] / "threads.py")


@pytest.mark.parametrize("attention", ["dense", "dense-static", "triton"])
def test_greedy_tokens_are_those_of_transformers(engine, expected, monkeypatch, attention, device):
    if attention == "triton" and device == "cpu":
        pytest.skip("it needs a GPU")
    llm = engine(attention=attention)
    seen = replays(llm, monkeypatch)
    assert answers(llm) == expected
    assert seen == [(len(LENGTHS), 8)] * (TOKENS - 1)


def test_a_rehearsal_of_all_sizes_changes_no_token(engine, expected, monkeypatch):
    rehearsed = []

    @torch.inference_mode()
    def compile(_self, graphs, prompts):
        for of in (graphs, prompts):
            for size in of.sizes:
                of.rehearse(size)
                rehearsed.append(size)
        return 0

    monkeypatch.setattr(CudaGraph, "_compile", compile)
    assert answers(engine()) == expected
    assert rehearsed[:5] == [1, 2, 4, 8, 11]


def test_every_batch_fits_into_the_next_size(engine, expected, monkeypatch):
    llm = engine()
    seen = replays(llm, monkeypatch)
    params = [
        SamplingParams(temperature=0, max_tokens=n + 1, ignore_eos=True)
        for n in range(1, len(LENGTHS) + 1)
    ]
    cut = [tokens[: n + 2] for n, tokens in enumerate(expected)]
    assert answers(llm, params) == cut
    assert {count for count, _ in seen} == set(range(1, len(LENGTHS) + 1))
    assert all(size == min(s for s in (1, 2, 4, 8, 11) if s >= count) for count, size in seen)


def test_a_backends_own_state_is_refreshed_for_each_step(engine, expected):
    llm = engine(attention="dense-static")
    seen = type(worker(llm).backends[0]).refreshed
    seen.clear()
    assert answers(llm) == expected
    last = [n + TOKENS - 1 for n in LENGTHS]
    assert seen[-1] == (len(LENGTHS), last)
    assert [lens for _, lens in seen] == [[n + step for n in LENGTHS] for step in range(1, TOKENS)]


def test_preempted_requests_lose_nothing(engine, expected):
    llm = engine(cache={"pages": 14})
    assert answers(llm) == expected
    assert llm.engine.statistics()["preemptions"] > 0


def test_chunks_beside_decoding_run_eagerly(engine, expected, monkeypatch):
    llm = engine(scheduler={"max_num_batched_tokens": 8})
    seen = replays(llm, monkeypatch)
    assert answers(llm) == expected
    assert 0 < len(seen) < llm.engine.statistics()["steps"]


def test_a_second_run_is_warm_and_equal(engine, expected):
    llm = engine()
    answers(llm)
    assert answers(llm) == expected


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_replay_alike(engine, expected, monkeypatch, device, size):
    if device != "cpu":
        pytest.skip("ranks that are threads meet on the host")
    monkeypatch.setattr(ThreadCommunicator, "graphable", True)
    llm = engine(plugins=[DENSE, THREADS], executor="threads", tensor_parallel_size=size)
    assert answers(llm) == expected
