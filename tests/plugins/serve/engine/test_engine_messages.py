"""Messages between the processes: nothing is lost or changed, however the stream is cut."""

from __future__ import annotations

import math
import socket
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import UserError
from core.sampling.params import SamplingParams
from core.types import TokenLogprobs
from plugins.serve.engine import link
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
