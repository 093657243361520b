"""Ctrl-C and errors within a captured step: host and device stay in step all the same."""

from __future__ import annotations

from typing import Any

import pytest

from core import LLM
from tests.plugins.graph_engines import *  # noqa: F403
from tests.plugins.graph_engines import answers, graphs

LAZY = {"use": "cuda_graph", "sizes": [2, 5], "prompts": 0, "capture": "lazy"}


def interrupt(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, at: int, late: bool):
    """Let the call number `at` of a method be interrupted, at its start or behind its end."""
    original, calls = getattr(owner, name), []

    def call(self: Any, *args: Any, **named: Any) -> Any:
        calls.append(self)
        if len(calls) == at and not late:
            raise KeyboardInterrupt
        result = original(self, *args, **named)
        if len(calls) == at:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(owner, name, call)


def interrupted(llm: LLM) -> None:
    with pytest.raises(KeyboardInterrupt):
        answers(llm)


@pytest.mark.parametrize("overlap", ["auto", "on"])
@pytest.mark.parametrize("late", [False, True])
def test_answers_after_an_interrupted_replay_are_right(
    engine, expected, monkeypatch, late, overlap
):
    llm = engine(executor={"overlap": overlap})
    kind = type(graphs(llm).fitting(1)._parts[0])
    for at in (1, 3):
        with monkeypatch.context() as patch:
            interrupt(patch, kind, "replay", at=at, late=late)
            interrupted(llm)
        for _ in range(2):
            assert answers(llm) == expected


def test_answers_after_an_interrupted_capture_are_right(engine, expected, monkeypatch):
    # of 7 requests 2 are left, and no other step is under way while theirs is captured
    llm = engine(runner=LAZY, scheduler={"max_num_seqs": 5}, executor={"overlap": "auto"})
    with monkeypatch.context() as patch:
        interrupt(patch, type(graphs(llm).capturing), "capture", at=1, late=True)
        interrupted(llm)
    assert len(graphs(llm)) == 1
    assert answers(llm) == expected
