"""What a captured step costs the host: one copy and one replay, no plan, and no waiting."""

from __future__ import annotations

import logging

import pytest
import torch

from core import SamplingParams
from core.landed import Landed
from core.types import AttentionMetadata
from tests.plugins.graph_engines import *  # noqa: F403
from tests.plugins.graph_engines import TOKENS, answers, graphs, prompts, replays, worker


def test_a_step_takes_no_copy_to_or_from_the_device(engine, monkeypatch):
    llm = engine(executor={"overlap": "auto"})
    for prompt in prompts():
        llm.engine.add(prompt, SamplingParams(temperature=0.5, max_tokens=40, ignore_eos=True))
    for _ in range(4):
        llm.engine.step()
    monkeypatch.setattr(worker(llm).rows.staging, "send", None)
    monkeypatch.setattr(Landed, "of", None)
    before = llm.engine.statistics()["steps"]
    for _ in range(20):  # requests begin a page every fourth step
        llm.engine.step()
    assert llm.engine.statistics()["steps"] >= before + 19


@pytest.mark.parametrize("attention", ["dense", "dense-static"])
def test_backends_plan_only_the_steps_that_run_eagerly(engine, expected, monkeypatch, attention):
    llm = engine(attention=attention, runner={"use": "cuda_graph", "prompts": 0})
    backend, planned = worker(llm).backends[0], []
    # a recorder runs again what a graph would hold
    captured = [graph.static.meta for graph in graphs(llm)._graphs.values()]
    original = backend.plan

    def plan(meta: AttentionMetadata) -> None:
        planned.extend([meta] if all(meta is not own for own in captured) else [])
        original(meta)

    monkeypatch.setattr(backend, "plan", plan)
    seen = replays(llm, monkeypatch)
    assert answers(llm) == expected
    assert len(seen) == TOKENS - 1
    assert len(planned) == llm.engine.statistics()["steps"] - len(seen) == 1


def test_steady_decoding_never_waits_for_the_device(engine, device):
    if device == "cpu":
        pytest.skip("nothing to wait for")
    llm = engine()
    for prompt in prompts():
        llm.engine.add(prompt, SamplingParams(temperature=0.5, max_tokens=60, ignore_eos=True))
    for _ in range(4):
        llm.engine.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(30):
            llm.engine.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(
    ("attention", "words"),
    [
        ("sdpa", "attention by Sdpa cannot be captured"),
        ("dense", "no graphs on cpu"),
    ],
)
def test_where_nothing_can_be_captured_it_says_so_and_runs(
    engine, expected, caplog, monkeypatch, device, attention, words
):
    if attention == "dense":
        if device != "cpu":
            pytest.skip("there are graphs")
        monkeypatch.undo()
    with caplog.at_level(logging.INFO, "plait"):
        llm = engine(attention=attention)
    assert words in caplog.text
    assert worker(llm).runner.most_decodes == 0
    assert answers(llm) == expected
