"""Text that is made while the host waits for a step is the text that would be made at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core import LLM, SamplingParams
from core.generation import FEW, Answer
from core.interfaces import Pending
from core.types import StepOutput
from tests.tiny import save_tiny

PROMPTS = [[n + 65, 66, 67] for n in range(9)]
WISHES = [
    SamplingParams(temperature=0.9, seed=1, max_tokens=40),
    SamplingParams(temperature=0.9, seed=2, max_tokens=40, min_tokens=20),
    SamplingParams(temperature=0.9, seed=3, max_tokens=33, stop=["e"]),
    SamplingParams(temperature=0.9, seed=4, max_tokens=40, n=3),
    SamplingParams(temperature=0.9, seed=5, max_tokens=40, stop_token_ids=list(range(100, 110))),
    SamplingParams(temperature=0.9, seed=6, max_tokens=40, detokenize=False),
    SamplingParams(temperature=0.9, seed=7, max_tokens=40, skip_special_tokens=False),
    SamplingParams(temperature=0.9, seed=8, max_tokens=40, logprobs=1),
    SamplingParams(
        temperature=0.9, seed=9, max_tokens=40, stop_token_ids=[70], include_stop_str_in_output=True
    ),
]


class Slow(Pending):
    """A step that is over when its result is asked for, and not before."""

    def __init__(self, pending: Pending, looks: int) -> None:
        self._pending, self.looks = pending, looks

    def done(self) -> bool:
        self.looks -= 1
        return self.looks < 0

    def result(self) -> StepOutput:
        return self._pending.result()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


def outcome(llm: LLM) -> list[Any]:
    outputs = llm.generate(PROMPTS, WISHES, use_tqdm=False)
    return [
        [(one.text, one.token_ids, one.finish_reason, one.stop_reason) for one in output.outputs]
        for output in outputs
    ]


def slowed(llm: LLM, monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
    executor = llm.engine.executor
    original = executor.submit
    monkeypatch.setattr(executor, "submit", lambda plan: Slow(original(plan), looks))


@pytest.mark.parametrize("looks", [4, 1000])
def test_the_text_is_the_same_and_most_of_it_is_there_before_the_end(
    checkpoint, device, monkeypatch, looks
):
    with LLM(checkpoint, device=device) as llm:
        expected = outcome(llm)
        slowed(llm, monkeypatch, looks)
        early = []
        original = Answer.advance

        def advance(self: Answer) -> None:
            before = self._taken
            original(self)
            early.append(self._taken - before)

        monkeypatch.setattr(Answer, "advance", advance)
        assert outcome(llm) == expected
    assert max(early) >= FEW
    assert sum(early) > 3 * 20


def test_a_step_that_is_over_is_not_kept_waiting(checkpoint, device, monkeypatch):
    with LLM(checkpoint, device=device) as llm:
        slowed(llm, monkeypatch, looks=0)
        monkeypatch.setattr(Answer, "advance", None)
        assert len(outcome(llm)) == len(PROMPTS)


def test_a_tokenizer_that_fails_meanwhile_ends_its_request_alone(checkpoint, device, monkeypatch):
    with LLM(checkpoint, device=device) as llm:
        expected = outcome(llm)
        slowed(llm, monkeypatch, looks=1000)
        original = Answer.advance

        def advance(self: Answer) -> None:
            if self.request.params.seed == 1 and len(self.request.output) > FEW:
                raise ValueError("no such token")
            original(self)

        monkeypatch.setattr(Answer, "advance", advance)
        outputs = llm.generate(PROMPTS, WISHES, use_tqdm=False)
    failed = outputs[0].outputs[0]
    assert failed.finish_reason == "error"
    assert "no such token" in failed.error
    texts = [[one.text for one in output.outputs] for output in outputs[1:]]
    assert texts == [[text for text, *_ in answer] for answer in expected[1:]]
