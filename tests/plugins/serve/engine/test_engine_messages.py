"""Messages between the processes: nothing is lost or changed, however the stream is cut."""

from __future__ import annotations

import math
import random
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import UserError
from core.sampling.params import SamplingParams
from core.types import Request, StepOutput, StepPlan, TokenLogprobs
from plugins.serve.engine import link
from plugins.serve.engine.bulletin import Bulletin
from plugins.serve.engine.frames import Frames, frame
from plugins.serve.engine.link import Gone, Link
from plugins.serve.engine.messages import (
    Accepted,
    Counters,
    News,
    Piece,
    Rejected,
    Report,
    Submit,
    pack,
    unpack,
)
from plugins.serve.engine.messages import Request as Asked

INT32 = st.integers(-(2**31), 2**31 - 1)
SCORES = st.builds(
    TokenLogprobs,
    token=INT32,
    logprob=st.floats(allow_nan=False, max_value=0),
    rank=st.integers(1, 2**31),
    top_ids=st.lists(INT32, max_size=3),
    top_logprobs=st.lists(st.floats(allow_nan=False), max_size=3),
)
PIECES = st.builds(
    Piece,
    index=st.integers(0, 100),
    ids=st.lists(INT32, max_size=3),
    logprobs=st.none() | st.lists(SCORES, max_size=2),
    prompt_logprobs=st.none() | st.lists(SCORES, max_size=2),
    cached=st.integers(0, 10**6),
    finish=st.sampled_from([None, "stop", "length", "abort", "error"]),
    stop_reason=st.none() | INT32,
    error=st.none() | st.text(),
)
REPORTS = st.one_of(
    st.builds(Accepted, INT32),
    st.builds(Rejected, INT32, st.lists(st.text())),
    st.builds(Counters, st.dictionaries(st.text(), st.integers(-(2**63), 2**63 - 1))),
    st.builds(
        News,
        st.none() | st.binary(max_size=20),
        st.binary(max_size=20),
        st.lists(st.tuples(INT32, PIECES), max_size=3),
    ),
)


@given(st.lists(st.binary(max_size=300), max_size=8), st.lists(st.integers(0, 400), max_size=20))
def test_messages_come_whole_however_the_stream_is_cut(
    messages: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join(map(frame, messages))
    frames, found = Frames(), []
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(stream)], strict=True):
        found += frames.feed(stream[start:end])

    assert found == messages


@given(REPORTS)
def test_reports_arrive_as_they_were(report: Any) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=Report) == report


@given(st.lists(INT32))
def test_ids_arrive_as_they_were(ids: list[int]) -> None:
    assert unpack(pack(ids)) == ids


PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(0.01, 2),
        "top_p": st.floats(0.01, 1),
        "top_k": st.integers(-1, 100),
        "min_p": st.floats(0, 1),
        "n": st.integers(1, 20),
        "seed": st.none() | st.integers(-(2**63), 2**64 - 1),
        "presence_penalty": st.floats(-2, 2),
        "repetition_penalty": st.floats(0.1, 2),
        "stop": st.lists(st.text(st.characters(codec="utf-8"), min_size=1), max_size=3),
        "stop_token_ids": st.lists(st.integers(0, 300), max_size=3),
        "ignore_eos": st.booleans(),
        "max_tokens": st.none() | st.integers(10, 10**6),
        "min_tokens": st.integers(0, 9),
        "logprobs": st.none() | st.integers(-1, 20),
        "prompt_logprobs": st.none() | st.integers(-1, 20),
        "logit_bias": st.dictionaries(st.integers(0, 300), st.floats(-100, 100), max_size=3),
        "bad_words": st.lists(st.text(st.characters(codec="utf-8"), min_size=1), max_size=2),
        "allowed_token_ids": st.none() | st.lists(st.integers(0, 300), min_size=1, max_size=3),
        "skip_special_tokens": st.booleans(),
        "extra_args": st.dictionaries(st.text(), st.integers(0, 9) | st.text() | st.booleans()),
    },
)


@given(PARAMS)
def test_sampling_parameters_are_built_anew_as_they_were_given(values: dict[str, Any]) -> None:
    try:
        params = SamplingParams(**values)
    except UserError:
        return
    fields = {name: getattr(params, name) for name in params.given}
    message = msgspec.msgpack.encode(Submit(1, b"", fields, 0, None))
    arrived = msgspec.msgpack.decode(message, type=Asked)

    assert isinstance(arrived, Submit)
    again = SamplingParams(**arrived.params)
    assert again == params
    assert again.given == params.given


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
        steps.step()
        for news in messages:
            steady = steady if news.answers is None else unpack(news.answers)
            for number, token in zip(steady, unpack(news.ids), strict=True):
                told[number].append(token)
                assert not steps.scored[number]
            for number, piece in news.others:
                assert piece.cached == (number - piece.index if number not in told else 0)
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


class TestALink:
    @pytest.fixture
    def ends(self) -> Any:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            yield SimpleNamespace(link=Link(ours), other=theirs)

    def test_what_nobody_reads_waits(self, ends: Any) -> None:
        report = Rejected(1, ["x" * 100_000])
        for _ in range(20):
            ends.link.put(report)
            ends.link.flush()  # does not wait
        frames, found = Frames(), []
        ends.other.settimeout(10)
        while len(found) < 20:
            ends.link.flush()
            found += frames.feed(ends.other.recv(2**16))

        assert [msgspec.msgpack.decode(message, type=Report) for message in found] == [report] * 20

    def test_of_too_much_it_waits_for_the_reader(
        self, ends: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(link, "MOST_HELD", 1000)
        waited: list[bool] = []

        def read() -> None:
            waited.append(True)
            ends.other.recv(2**20)

        monkeypatch.setattr(ends.link, "_outgoing", SimpleNamespace(poll=read))
        for _ in range(20):
            ends.link.put(Rejected(1, ["x" * 100_000]))
            ends.link.flush()
            assert len(ends.link._held) <= 1000

        assert waited

    def test_the_end_is_noticed_by_who_waits_and_by_who_sends(self, ends: Any) -> None:
        ends.other.close()
        with pytest.raises(Gone):
            ends.link.receive(wait=True)
        ends.link.put(Accepted(1))
        with pytest.raises(Gone):
            ends.link.flush()

    def test_who_only_listens_has_gone_too(self, ends: Any) -> None:
        ends.other.shutdown(socket.SHUT_WR)

        with pytest.raises(Gone):
            ends.link.receive(wait=True)

    def test_nothing_is_there_and_nobody_waits(self, ends: Any) -> None:
        assert ends.link.receive(wait=False) == []


def test_infinite_log_probabilities_arrive() -> None:
    piece = Piece(0, [1], [TokenLogprobs(1, -math.inf, 3)])
    news = News(None, b"", [(1, piece)])

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(news), type=Report) == news
