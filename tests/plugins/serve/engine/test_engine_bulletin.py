"""What is told of steps: each id once and in order, at little cost."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from core.sampling.params import SamplingParams
from core.types import Request, StepOutput, StepPlan, TokenLogprobs
from plugins.serve.engine.bulletin import Bulletin
from plugins.serve.engine.messages import News, unpack


class Steps:
    """Steps of requests that are not there: what each samples is made up."""

    def __init__(self, seed: int, put: Callable[[News], None]) -> None:
        self.chance = random.Random(seed)
        self.bulletin = Bulletin(put)
        self.running: list[Request] = []
        self.given: dict[int, list[int]] = {}
        self.scored: dict[int, bool] = {}
        self.ends: dict[int, str | None] = {}
        self._number = 0

    def add(self) -> None:
        n = self.chance.choice([1, 1, 3])
        logprobs = self.chance.choice([None, None, None, 0])
        params = SamplingParams(n=n, logprobs=logprobs)
        name = str(self._number)
        self.bulletin.expect(name, self._number, params)
        for index in range(n):
            id = name if n == 1 else f"{name}/{index}"
            self.running.append(Request(id, [1], params, cached=self._number))
            self.given[self._number + index] = []
            self.scored[self._number + index] = logprobs is not None
        self._number += n

    def add_in_vain(self) -> None:
        """One that the engine could not queue."""
        n = self.chance.choice([1, 1, 3])
        for number in range(self._number, self._number + n):
            self.given[number], self.scored[number], self.ends[number] = [], False, "error"
        self.bulletin.never_ran(self._number, n, "it broke")
        self._number += n

    def step(self) -> None:
        """Most steps sample one id for everybody, in the same order; some do not."""
        chance = self.chance
        kind = chance.choice(["usual"] * 6 + ["shuffled", "some", "counts", "overrun"])
        requests = list(self.running)
        if kind == "shuffled":
            chance.shuffle(requests)
        if kind in ("some", "counts"):
            requests = [request for request in requests if chance.random() < 0.8]
        dropped = chance.choice(requests) if kind == "overrun" and requests else None
        if dropped is not None:
            dropped.finish_reason = "abort"
            self.bulletin.forget(dropped.id, None, 1)
        counts = [chance.choice([0, 1, 2]) if kind == "counts" else 1 for _ in requests]
        ids = [chance.randrange(1000) for count in counts for _ in range(count)]
        left, news, logprobs = list(ids), [], {}
        for s, (request, count) in enumerate(zip(requests, counts, strict=True)):
            new, left = left[:count], left[count:]
            if request is dropped:
                continue
            if request.params.logprobs is not None:
                logprobs[s] = [TokenLogprobs(token, -float(token), 1) for token in new]
            if chance.random() < 0.02:
                request.finish_reason = chance.choice(["stop", "length"])
                request.stop_reason = 7 if request.finish_reason == "stop" else None
                new = new[:1]  # what comes behind the end is dropped
            request.output += new
            if new or request.finish_reason:
                news.append(request)
            self.given[self.number(request)] += new
        if kind == "shuffled":
            news.sort(key=self.running.index)
        size = len(requests)
        plan = StepPlan(0, *[np.ones(size, np.int32)] * 8, requests=requests)
        plural = np.array(counts, np.int32) if kind == "counts" else None
        self.bulletin(plan, StepOutput(0, np.array(ids, np.int32), plural, logprobs), news)
        ended = [r for r in self.running if r.finish_reason is not None]
        self.ends |= {self.number(r): r.finish_reason for r in ended if r is not dropped}
        self.running = [r for r in self.running if r not in ended]

    @staticmethod
    def number(request: Request) -> int:
        first, _, index = request.id.partition("/")
        return int(first) + int(index or 0)


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_the_bulletin_tells_each_id_once_and_in_order(seed: int) -> None:
    told: dict[int, list[int]] = {}
    ends: dict[int, str | None] = {}
    messages: list[News] = []
    steps = Steps(seed, messages.append)
    steady: list[int] = []
    for _ in range(60):
        if steps.chance.random() < 0.2:
            steps.add()
        if steps.chance.random() < 0.1:
            steps.add_in_vain()
        steps.step()
        for news in messages:
            steady = steady if news.answers is None else unpack(news.answers)
            for number, token in zip(steady, unpack(news.ids), strict=True):
                told[number].append(token)
                assert not steps.scored[number]
            for number, piece in news.others:
                assert (piece.error is None) == (piece.finish != "error")
                first = number not in told and piece.finish != "error"
                assert piece.cached == (number - piece.index if first else 0)
                scores = [score.token for score in piece.logprobs or ()]
                assert scores == (piece.ids if steps.scored[number] else [])
                told.setdefault(number, []).extend(piece.ids)
                if piece.finish is not None:
                    ends[number] = piece.finish
                assert (piece.stop_reason == 7) == (piece.finish == "stop")
        messages.clear()

    assert told == {number: ids for number, ids in steps.given.items() if number in told}
    assert all(not ids for number, ids in steps.given.items() if number not in told)
    assert ends == steps.ends
    assert set(steps.bulletin._told) == {request.id for request in steps.running}


def test_a_decode_step_of_known_requests_is_two_columns() -> None:
    messages: list[News] = []
    bulletin = Bulletin(messages.append)
    requests = [Request(str(i), [1], SamplingParams()) for i in range(3)]
    for i in range(3):
        bulletin.expect(str(i), i, requests[i].params)
    plan = StepPlan(0, *[np.ones(3, np.int32)] * 8, requests=requests)
    for step in range(4):
        for request in requests:
            request.output.append(10 * step)
        bulletin(plan, StepOutput(0, np.full(3, 10 * step, np.int32)), list(requests))

    shapes = [(news.answers is None, len(unpack(news.ids)), len(news.others)) for news in messages]
    assert shapes == [(False, 0, 3), (False, 3, 0), (True, 3, 0), (True, 3, 0)]
