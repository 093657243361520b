"""Sampling in graphs, behind them, and where it fails: what rows ask for they get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from core import LLM, SamplingParams
from tests.plugins.graph_engines import *  # noqa: F403
from tests.plugins.graph_engines import (
    DENSE,
    PLAIN,
    TOKENS,
    answers,
    graphs,
    prompts,
    replays,
    worker,
)

WISHES = {
    "random": [SamplingParams(temperature=1.2, seed=n, max_tokens=TOKENS) for n in range(7)],
    "truncated": SamplingParams(temperature=0.9, top_k=7, top_p=0.8, seed=4, max_tokens=TOKENS),
    "some": [
        PLAIN,
        SamplingParams(temperature=0.8, seed=3, max_tokens=TOKENS, ignore_eos=True),
        SamplingParams(temperature=0, repetition_penalty=1.9, max_tokens=TOKENS),
        SamplingParams(temperature=0, logprobs=2, max_tokens=TOKENS),
        SamplingParams(temperature=0.7, seed=9, logit_bias={7: 5.0}, max_tokens=4),
        PLAIN,
        SamplingParams(temperature=0, min_tokens=3, prompt_logprobs=1, max_tokens=TOKENS),
    ],
}


def outcome(llm: LLM, params: Any) -> list[Any]:
    found = []
    for output in llm.generate(prompts(), params, use_tqdm=False):
        one = output.outputs[0]
        ranks = [
            {token: (entry.rank, round(entry.logprob, 2)) for token, entry in step.items()}
            for step in one.logprobs or []
        ]
        known = [None if p is None else sorted(p) for p in output.prompt_logprobs or []]
        found.append((one.token_ids, one.finish_reason, ranks, known))
    return found


@pytest.mark.parametrize("wishes", WISHES)
def test_whatever_rows_ask_for_they_get_what_the_eager_runner_gives(engine, wishes, monkeypatch):
    llm = engine()
    seen = replays(llm, monkeypatch)
    assert outcome(llm, WISHES[wishes]) == outcome(engine("eager"), WISHES[wishes])
    assert len(seen) >= TOKENS - 1


def test_a_sampler_that_cannot_be_captured_gets_the_graphs_logits(engine, expected, monkeypatch):
    sampler = {"use": "default", "processors": ["plain-bias"]}
    plugin = str(Path(__file__).parents[1] / "plain_bias.py")
    llm = engine(sampler=sampler, plugins=[DENSE, plugin])
    assert not graphs(llm)._samples
    seen = replays(llm, monkeypatch)
    assert answers(llm) == expected
    assert len(seen) == TOKENS - 1


def test_a_row_without_a_finite_logit_ends_alone(engine, expected, monkeypatch, device):
    if device != "cpu":
        pytest.skip("what is captured cannot be replaced afterwards")
    llm = engine(executor={"overlap": "off"})
    original = worker(llm).logits
    ids = [llm.engine.add(prompt, PLAIN) for prompt in prompts()[:3]]
    llm.engine.step()
    llm.engine.step()

    def broken(hidden, batch):
        made = original(hidden, batch)
        made[1] = torch.nan
        return made

    monkeypatch.setattr(worker(llm), "logits", broken)
    outputs = {output.request_id: output for output in llm.engine.step()}
    assert outputs[ids[1]].outputs[0].finish_reason == "error"
    assert "no token can be drawn" in outputs[ids[1]].outputs[0].error
    monkeypatch.setattr(worker(llm), "logits", original)
    while llm.engine.busy:
        outputs |= {output.request_id: output for output in llm.engine.step()}
    assert [outputs[ids[n]].outputs[0].token_ids for n in (0, 2)] == [expected[0], expected[2]]
