"""An engine for tests of apps: it answers at once, and remembers what it was asked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from core.outputs import CompletionOutput, RequestMetrics, RequestOutput
from core.sampling.params import SamplingParams


class FakeLLM:
    """Answers every prompt with the words of `answer`, a piece each, and never computes."""

    def __init__(self, answer: str = "so it is", finish_reason: str = "stop") -> None:
        self.pieces = [w if i == 0 else " " + w for i, w in enumerate(answer.split(" "))]
        self.finish_reason = finish_reason
        self.asked: list[Any] = []
        self.params: list[SamplingParams] = []
        self.templates: list[dict[str, Any]] = []
        self.closed: list[bool] = []  # a stream: whether its answer was cut short
        self.refusal: Exception | None = None
        self.waiting: list[tuple[str, SamplingParams]] = []
        self.engine = SimpleNamespace(
            limits=SimpleNamespace(max_length=4096, max_num_seqs=4),
            reset_prefix_cache=lambda: self.asked.append("reset"),
            add=self._add,
            step=self._step,
        )

    def get_default_sampling_params(self) -> SamplingParams:
        return SamplingParams(temperature=0.6)

    def generate(self, prompts: Any, params: Any, *, use_tqdm: bool = True) -> list[RequestOutput]:
        return self._answer_all(prompts, params)

    def chat(self, conversations: Any, params: Any, **template: Any) -> list[RequestOutput]:
        self.templates.append(template)
        return self._answer_all(conversations, params)

    def stream(self, prompt: Any, params: SamplingParams) -> Iterator[RequestOutput]:
        if self.refusal:
            raise self.refusal
        self.asked.append(prompt)
        self.params.append(params)
        return self._pieces(prompt)

    def stream_chat(
        self, messages: Any, params: SamplingParams, **template: Any
    ) -> Iterator[RequestOutput]:
        self.templates.append(template)
        return self.stream([dict(m) for m in messages], params)

    def _pieces(self, prompt: Any) -> Iterator[RequestOutput]:
        text = ""
        finished = False
        try:
            for number, piece in enumerate(self.pieces, 1):
                text += piece
                finished = number == len(self.pieces)
                yield output(
                    "0", prompt, text, number, self.finish_reason if finished else None, piece
                )
        finally:
            self.closed.append(not finished)

    def _answer_all(self, prompts: Any, params: Any) -> list[RequestOutput]:
        listed = params if isinstance(params, list) else [params] * len(prompts)
        self.asked += prompts
        self.params += listed
        text = "".join(self.pieces)
        return [
            output(
                str(i), prompt, text, p.max_tokens if p.ignore_eos else 3, self.finish_reason, n=p.n
            )
            for i, (prompt, p) in enumerate(zip(prompts, listed, strict=True))
        ]

    def _add(self, prompt: Any, params: SamplingParams, *, live: bool) -> str:
        self.asked.append(prompt)
        self.waiting.append((str(len(self.asked)), params))
        return self.waiting[-1][0]

    def _step(self) -> list[RequestOutput]:
        done, self.waiting = self.waiting, []
        return [
            o
            for id, params in done
            for o in (
                output(id, None, "", 1, None),
                output(id, None, "", params.max_tokens, "length"),
            )
        ]


def output(
    id: str, prompt: Any, text: str, tokens: int | None, reason: Any, delta: str = "", n: int = 1
) -> RequestOutput:
    """An output of `tokens` tokens; its times are 10 ms to the first and 2 ms for each later."""
    now = time.monotonic()
    count = tokens or 1
    metrics = RequestMetrics(now, now + 0.01, now + 0.01 + 0.002 * (count - 1))
    answers = [
        CompletionOutput(i, text, list(range(count)), finish_reason=reason, delta=delta)
        for i in range(n)
    ]
    shown = prompt if isinstance(prompt, str) else None
    return RequestOutput(id, shown, [1, 2], answers, reason is not None, metrics=metrics)


@pytest.fixture
def fake_llm() -> type[FakeLLM]:
    return FakeLLM
