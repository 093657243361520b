"""Measuring a server: what is read from it, how it is loaded, and the figures that come of it."""

from __future__ import annotations

import asyncio
import json
import math
import xml.dom.minidom
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import UserError
from plugins.apps.bench.app import Bench
from plugins.apps.bench.connection import Address, Answer, Connection, clock
from plugins.apps.bench.load import Pool, arrival_times, closed_loop, open_loop
from plugins.apps.bench.plot import draw
from plugins.apps.bench.served import bench_server
from plugins.apps.bench.serving_report import Load, figures, summary
from plugins.apps.bench.workloads import Item, Workload

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(text: str, finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice], **more}).encode() + b"\n\n"


def streamed(*events: bytes) -> bytes:
    chunks = [b"%x\r\n%s\r\n" % (len(e), e) for e in events]
    return HEAD + b"".join(chunks) + b"0\r\n\r\n"


USAGE = b'data: {"choices":[],"usage":{"completion_tokens":3}}\n\n'
REFUSAL = b'{"error": {"message": "too long"}}\n'
DONE = b"data: [DONE]\n\n"
WHOLE = streamed(
    event("a"), event("\u00e9"), event("c", usage=None), event("", "length"), USAGE, DONE
)


def read(pieces: Sequence[bytes], *, closes: bool = False) -> Answer:
    """What a connection makes of bytes that come in these pieces."""

    class Transport(asyncio.Transport):
        def write(self, data: Any) -> None:
            return None

    async def run() -> Answer:
        connection = Connection()
        connection.connection_made(Transport())
        asking = asyncio.ensure_future(connection.ask(b"GET / HTTP/1.1\r\n\r\n"))
        await asyncio.sleep(0)
        for piece in pieces:
            connection.data_received(piece)
        if closes:
            connection.connection_lost(None)
        return await asyncio.wait_for(asking, 5)

    return asyncio.run(run())


@settings(max_examples=40)
@given(st.sets(st.integers(1, len(WHOLE) - 1), max_size=12))
def test_tokens_are_found_however_the_stream_is_cut(cuts: set[int]) -> None:
    ends = [0, *sorted(cuts), len(WHOLE)]
    answer = read([WHOLE[a:b] for a, b in pairwise(ends)])
    assert (len(answer.tokens), answer.count, answer.error) == (3, 3, None)


def test_a_stream_may_be_cut_at_every_place() -> None:
    for at in range(1, len(WHOLE)):
        answer = read([WHOLE[:at], WHOLE[at:]])
        assert (len(answer.tokens), answer.count, answer.error) == (3, 3, None), at


def test_a_last_token_may_come_with_the_reason() -> None:
    assert len(read([streamed(event("a"), event("b", "stop"), USAGE)]).tokens) == 2


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([b"HTTP/1.1 400 Bad\r\nContent-Length: 35\r\n\r\n" + REFUSAL], "400: too long"),
        ([streamed(event("a"), b'data: {"error": {"message": "it broke"}}\n\n')], "it broke"),
        ([HEAD + b"5\r\ndata:"], "before the end"),
    ],
)  # fmt: skip
def test_what_fails_is_told(pieces: list[bytes], words: str) -> None:
    assert words in (read(pieces, closes=True).error or "")


def test_a_closed_loop_has_so_many_requests_under_way() -> None:
    under_way, most = 0, 0

    async def ask(request: bytes, since: float | None) -> Answer:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.001 * (request[0] % 5))
        under_way -= 1
        return Answer(error=str(request[0]))

    answers = asyncio.run(closed_loop(ask, [bytes([i]) for i in range(40)], 7))
    assert most == 7
    assert [a.error for a in answers] == [str(i) for i in range(40)]


def test_an_open_loop_waits_for_nobody_and_counts_from_the_moment_meant() -> None:
    async def ask(request: bytes, since: float | None) -> Answer:
        assert since is not None
        await asyncio.sleep(0.2)
        return Answer(sent=since, ended=clock())

    start = clock()
    answers = asyncio.run(open_loop(ask, [b"x"] * 5, [0.0, 0.01, 0.02, 0.03, 0.04]))
    assert clock() - start < 1.0  # one after the other would take as long
    gaps = numpy.diff([a.sent for a in answers])
    assert gaps == pytest.approx([0.01] * 4)


@pytest.mark.parametrize("burstiness", [0.3, 1.0, 4.0])
def test_arrivals_have_their_rate_and_burstiness(burstiness: float) -> None:
    moments = arrival_times(20_000, 50.0, burstiness, seed=1)
    gaps = numpy.diff(moments)
    assert moments[0] == 0
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.05)
    assert moments == arrival_times(20_000, 50.0, burstiness, seed=1)


def answered(first: float, gaps: Sequence[float], error: str | None = None) -> Answer:
    times = [10 + first, *(10 + first + t for t in numpy.cumsum(gaps).tolist())]
    return Answer(10.0, times, times[-1], len(times), 200, error)


def test_the_figures_are_those_of_numpy() -> None:
    draw_ = numpy.random.default_rng(0)
    items = [Item([1] * 4, 6) for _ in range(50)]
    answers = [answered(draw_.uniform(0, 0.2), draw_.uniform(0, 0.02, 5).tolist()) for _ in items]
    answers[7].error = "it broke"
    good = [a for a in answers if a.error is None]
    work, slo = Workload("some", items), {"ttft": 100.0, "tpot": 10.0}
    line, values = figures(work, Load(concurrency=5), answers, 2.0, slo, "plait")
    first = [1e3 * (a.tokens[0] - a.sent) for a in good]
    each = [1e3 * (a.tokens[-1] - a.tokens[0]) / 5 for a in good]
    gaps = [1e3 * g for a in good for g in numpy.diff(a.tokens)]
    for name, found in (("ttft", first), ("tpot", each), ("itl", gaps)):
        assert line[f"mean_{name}_ms"] == pytest.approx(numpy.mean(found), abs=1e-3)
        for percent in (90, 95, 99):
            expected = numpy.percentile(found, percent)
            assert line[f"p{percent}_{name}_ms"] == pytest.approx(expected, abs=1e-3)
    within = sum(f <= 100 and e <= 10 for f, e in zip(first, each, strict=True))
    assert 0 < within < 49
    assert line["goodput_req_s"] == within / 2
    assert (line["completed"], line["failed"], line["errors"]) == (49, 1, {"it broke": 1})
    assert line["out_tok_s"] == 49 * 6 / 2
    shown = "\n".join(summary(line | {"peak_concurrent_requests": 5}))
    for label in (
        "Successful requests:", "Benchmark duration (s):", "Request throughput (req/s):",
        "Request goodput (req/s):", "Output token throughput (tok/s):", "Mean TTFT (ms):",
        "Median TPOT (ms):", "P99 ITL (ms):", "P99 E2EL (ms):",
    ):  # fmt: skip
        assert label in shown
    picture = xml.dom.minidom.parseString(draw([(line, values), (line, values)]))
    assert len(picture.getElementsByTagName("path")) > 8
    assert "e+" not in picture.toxml()


def test_limits_of_what_is_not_measured_are_refused() -> None:
    with pytest.raises(UserError, match=r"run.slo has itl"):
        figures(Workload("x", []), Load(), [], 1.0, {"itl": 3.0}, "plait")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("burstiness", math.nan),
        ("concurrency", [4, 0]),
        ("rate", [math.inf]),
        ("rate", [math.nan]),
        ("rounds", 0),
        ("vocabulary", 0),
        ("vocabulary", -1),
    ],
)
def test_a_load_that_cannot_be_is_refused(name: str, value: Any) -> None:
    options = Bench.Options(url="http://127.0.0.1:1", workloads=["decode:1:4:4"], **{name: value})
    with pytest.raises(UserError, match=rf"run\.{name} must be"):
        bench_server(options)


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://h:99999", "http://h:0"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UserError, match="no address"):
        Address.parse(url)


def test_paths_are_those_of_the_protocol() -> None:
    assert Address.parse("localhost:80/api/v1/") == Address("localhost", 80, "/api")
    sent = Address.parse("https://h/v1", key="k").request("POST", "/v1/models", {"a": 1})
    assert sent.startswith(b"POST /v1/models HTTP/1.1\r\nHost: h:443\r\nContent-Length: 8\r\n")
    assert b"Authorization: Bearer k\r\n" in sent


def test_a_server_that_is_not_there_is_said_so() -> None:
    with pytest.raises(UserError, match=r"no server answers at 127.0.0.1:1"):
        asyncio.run(Pool(Address.parse("http://127.0.0.1:1")).ask(b""))


@pytest.mark.slow
def test_the_command_measures_a_real_server(tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("uvicorn")
    from core.run import main
    from tests.served import served

    with served() as url:
        words = ["configs/qwen3-bench.yaml", f"run.url={url}", "run.workloads=[uniform:12:4:9:5:9]"]
        assert main(words) == 2
        assert "Set run.vocabulary" in capsys.readouterr().err
        words += ["run.vocabulary=4096", "run.concurrency=[1,4]", "run.rounds=2", "run.rate=[30]"]
        words += [f"run.plot={tmp_path / 'plot.svg'}", f"run.out={tmp_path / 'lines.jsonl'}"]
        assert main(words) == 0
        assert main([*words, "run.model=other"]) == 2
    told = capsys.readouterr()
    assert "has no model 'other', but tiny." in told.err
    lines = [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()]
    assert [line["completed"] for line in lines] == [2, 8, 12]
    assert [line["peak_concurrent_requests"] for line in lines[:2]] == [1, 4]
    assert all(line["failed"] == 0 and line["median_tpot_ms"] > 0 for line in lines)
    xml.dom.minidom.parse(str(tmp_path / "plot.svg"))
