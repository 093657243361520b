"""What /metrics shows is what happened, under the names that dashboards ask for."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client")
pytest.importorskip("starlette")

import httpx
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette

from core.testing.traffic import COUNTERS
from plugins.serve.distribution import Distribution, lengths
from plugins.serve.endpoints import metrics as endpoint
from plugins.serve.engine.messages import Piece
from plugins.serve.engine.submission import Refused
from plugins.serve.metrics import MOST_HELD, Meter
from tests.plugins.serve.fake_engine import FakeEngine

STATISTICS = {
    "running": 3, "waiting": 2, "pages_total": 40, "pages_owned": 10, "prefix_queries": 100,
    "prefix_hits": 25, "preemptions": 4,
}  # fmt: skip
DASHBOARD = Path(__file__).parents[3] / "docs" / "serving" / "grafana.json"


def samples(meter: Meter) -> dict[tuple[str, str], float]:
    """What a scraper reads: by the sample's name, and its `le` or `finished_reason`."""
    return parsed(meter.exposition().decode())


def parsed(text: str) -> dict[tuple[str, str], float]:
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = sample.labels
            key = labels.get("le") or labels.get("finished_reason") or ""
            found[sample.name.removeprefix("vllm:"), key] = sample.value
    return found


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Meter:
    """One whose clock stands still; `clock.append` moves it."""
    meter = Meter("tiny", 256)
    meter.clock = [100.0]  # type: ignore[attr-defined]
    monkeypatch.setattr("plugins.serve.metrics.time.monotonic", lambda: meter.clock[-1])  # type: ignore[attr-defined]
    return meter


def test_an_answer_is_timed_from_its_arrival_to_its_end(meter: Meter) -> None:
    clock = meter.clock  # type: ignore[attr-defined]
    with meter.arrived(7, max_tokens=4, at=99.5) as reading:
        for moment, piece in (
            (101.0, Piece(0, [1], waited=0.2)),
            (101.5, Piece(0, [2])),
            (102.5, Piece(0, [3, 4])),
            (103.0, Piece(0, [], finish="length")),
        ):
            clock.append(moment)
            reading.take(piece)
    found = samples(meter)
    assert found["time_to_first_token_seconds_sum", ""] == pytest.approx(1.5)
    assert found["inter_token_latency_seconds_count", ""] == 3
    assert found["inter_token_latency_seconds_sum", ""] == pytest.approx(1.5)
    assert found["inter_token_latency_seconds_bucket", "0.5"] == 3
    assert found["inter_token_latency_seconds_bucket", "0.4"] == 0
    assert found["request_time_per_output_token_seconds_sum", ""] == pytest.approx(0.5)
    assert found["e2e_request_latency_seconds_sum", ""] == pytest.approx(3.5)
    assert found["request_queue_time_seconds_sum", ""] == pytest.approx(0.2)
    assert found["request_prefill_time_seconds_sum", ""] == pytest.approx(1.3)
    assert found["request_decode_time_seconds_sum", ""] == pytest.approx(1.5)
    assert found["request_inference_time_seconds_sum", ""] == pytest.approx(2.8)
    assert found["prompt_tokens_total", ""] == 7
    assert found["generation_tokens_total", ""] == 4
    assert found["request_success_total", "length"] == 1
    assert found["request_params_max_tokens_bucket", "5.0"] == 1


def test_answers_of_one_prompt_count_apart_and_the_prompt_once(meter: Meter) -> None:
    with meter.arrived(5, n=2) as reading:
        reading.take(Piece(0, [1]))
        reading.take(Piece(1, [1]))
        reading.take(Piece(0, [2], finish="stop"))
        reading.take(Piece(1, [2, 3], finish="length"))
    found = samples(meter)
    assert found["prompt_tokens_total", ""] == 5
    assert found["generation_tokens_total", ""] == 5
    assert found["time_to_first_token_seconds_count", ""] == 2
    assert found["request_generation_tokens_sum", ""] == 5
    assert found["request_max_num_generation_tokens_sum", ""] == 3
    assert (found["request_success_total", "stop"], found["request_success_total", "length"]) == (
        1,
        1,
    )


def test_what_a_client_left_is_aborted(meter: Meter) -> None:
    with meter.arrived(5, n=2) as reading:
        reading.take(Piece(0, [1], finish="stop"))
    found = samples(meter)
    assert found["request_success_total", "abort"] == 1
    assert found["request_success_total", "stop"] == 1
    assert found["e2e_request_latency_seconds_count", ""] == 2


def test_what_the_engine_refuses_is_not_counted(meter: Meter) -> None:
    before = samples(meter)
    with pytest.raises(Refused), meter.arrived(5, max_tokens=3):
        raise Refused(["the prompt is too long."])
    for name, value in samples(meter).items():
        assert name[0].startswith("process_") or value == before[name], name


def test_the_gauges_are_those_of_the_engine_and_go_with_it(meter: Meter) -> None:
    meter.gauges(STATISTICS)
    found = samples(meter)
    assert (found["num_requests_running", ""], found["num_requests_waiting", ""]) == (3, 2)
    assert found["kv_cache_usage_perc", ""] == 0.25
    assert found["prefix_cache_hits_total", ""] / found["prefix_cache_queries_total", ""] == 0.25
    assert found["num_preemptions_total", ""] == 4
    meter.gauges(None)
    assert ("num_requests_running", "") not in samples(meter)


def test_what_every_scheduler_counts_is_enough(meter: Meter) -> None:
    meter.gauges(dict.fromkeys(COUNTERS, 0))
    assert samples(meter)["kv_cache_usage_perc", ""] == 0


def test_names_of_older_dashboards_say_the_same(meter: Meter) -> None:
    meter.gauges(STATISTICS)
    meter.arrived(1).take(Piece(0, [1, 2, 3]))
    found = samples(meter)
    assert found["gpu_cache_usage_perc", ""] == found["kv_cache_usage_perc", ""]
    assert found["time_per_output_token_seconds_count", ""] == 2


@given(
    st.lists(st.floats(0, 50), max_size=60),
    st.lists(st.floats(0, 40), min_size=1, max_size=9, unique=True).map(sorted),
)
def test_values_are_sorted_as_by_counting(values: list[float], bounds: list[float]) -> None:
    one_by_one, together = (Distribution("x", "", bounds) for _ in range(2))
    for value in values:
        one_by_one.add(value)
    together.held += values
    for each in (one_by_one, together):
        family = each.family({"a": "b"})
        counted = {s.labels.get("le"): s.value for s in family.samples}
        for bound in bounds:
            assert counted[str(bound)] == sum(value <= bound for value in values)
        assert counted["+Inf"] == len(values)
        assert family.samples[-1].value == pytest.approx(sum(values))


def test_lengths_go_up_to_the_longest_request() -> None:
    assert lengths(4096) == (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
    assert lengths(1) == (1,)


def test_waiting_values_do_not_pile_up(meter: Meter) -> None:
    reading = meter.arrived(1)
    for _ in range(3 * MOST_HELD):
        reading.tokens(0, 1)
    assert len(meter.gap.held) <= MOST_HELD
    assert samples(meter)["inter_token_latency_seconds_count", ""] == 3 * MOST_HELD - 1


@pytest.mark.speed
def test_a_token_costs_less_than_a_microsecond() -> None:
    reading, piece = Meter("tiny", 256).arrived(1), Piece(0, [1])
    best = 1.0
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(10_000):
            reading.take(piece)
        best = min(best, (time.perf_counter() - start) / 10_000)
    print(f"{best * 1e9:.0f} ns a token")
    assert best < 1e-6


@pytest.mark.anyio
async def test_the_endpoint_asks_the_engine_and_answers_without_it() -> None:
    app, engine = Starlette(routes=endpoint.ROUTES), FakeEngine()
    app.state.client, app.state.meter = engine, Meter("tiny", 256)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        first = await client.get("/metrics")
        assert first.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert parsed(first.text)["num_requests_running", ""] == 0
        engine.die()
        second = await client.get("/metrics")
        assert second.status_code == 200
        assert ("num_requests_running", "") not in parsed(second.text)
        assert ("generation_tokens_total", "") in parsed(second.text)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_every_query_of_the_dashboard_finds_a_metric() -> None:
    meter = Meter("tiny", 256)
    meter.gauges(STATISTICS)
    known = {
        sample.name
        for family in text_string_to_metric_families(meter.exposition().decode())
        for sample in family.samples
    }
    board = json.loads(DASHBOARD.read_text())
    variables = {entry["name"] for entry in board["templating"]["list"]}
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [e["query"]["query"] for e in board["templating"]["list"] if e["type"] == "query"]
    assert len(queries) > 20
    for query in queries:
        names = re.findall(r"(?:vllm:|process_)\w+", query)
        assert names, query
        assert set(names) <= known, query
        assert set(re.findall(r"\$(?!__)(\w+)", query)) <= variables, query
        assert [query.count(c) for c in "([{"] == [query.count(c) for c in ")]}"], query


def test_panels_of_the_dashboard_do_not_lie_on_each_other() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
