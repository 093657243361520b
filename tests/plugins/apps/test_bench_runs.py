"""Running workloads and reporting them: times, JSON lines, labels, and engines in turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest

from core.errors import UserError
from plugins.apps.bench.comparison import Comparison, Side, engine_side
from plugins.apps.bench.measure import Times, fold, run
from plugins.apps.bench.report import latencies, percentile, record, summary
from plugins.apps.bench.roofline import Machine, ModelSize, floor
from plugins.apps.bench.workloads import workload

SIZE = ModelSize(2, 4, 2, 8, 10_000, 1_000)
MACHINE = Machine(1e9, 1e10)


def test_a_batch_gives_the_time_to_the_first_and_of_each_token(fake_llm: Any) -> None:
    llm = fake_llm(finish_reason="length")

    times = run(llm, workload("uniform:3:4:9:5:9:1"))

    assert times.first == pytest.approx([0.010] * 3)
    assert times.each == pytest.approx([0.002] * 3)
    assert times.gaps == []


def test_the_engine_gets_the_ids_and_lengths_of_the_workload(fake_llm: Any) -> None:
    llm, work = fake_llm(), workload("uniform:3:4:9:5:9:1")

    run(llm, work)

    assert llm.asked == ["reset", *({"prompt_token_ids": item.prompt} for item in work.items)]
    asked = [(p.max_tokens, p.ignore_eos, p.temperature, p.top_k, p.top_p) for p in llm.params]
    assert asked == [(item.output, True, 0.6, 0, 1.0) for item in work.items]


def test_requests_over_time_are_handed_over_when_they_arrive(fake_llm: Any) -> None:
    work = workload("mixed:5:200:3:0")

    times = run(fake_llm(), work)

    assert times.seconds >= work.items[-1].arrival
    assert len(times.first) == len(times.each) == 5
    assert len(times.gaps) == work.output_tokens - 5
    assert min(times.first) >= 0


def test_an_answer_of_another_length_is_no_result(fake_llm: Any) -> None:
    class Short(fake_llm):
        def _answer_all(self, prompts: Any, params: Any) -> Any:
            outputs = super()._answer_all(prompts, params)
            outputs[1].outputs[0].token_ids.pop()
            return outputs

    with pytest.raises(UserError, match="request 1 made 4 of 5 tokens"):
        run(Short(), workload("decode:2:4:5:1"))


def test_a_request_beyond_the_engines_limit_is_refused(fake_llm: Any) -> None:
    with pytest.raises(UserError, match=r"5000 tokens .* 4096.*model\.max_length"):
        run(fake_llm(), workload("decode:1:4000:1000:1"))


def test_ids_are_folded_into_a_smaller_vocabulary() -> None:
    work = workload("decode:2:64:4:1")
    folded = fold(work, 100)

    assert [t for i in folded.items for t in i.prompt] == [
        t % 100 for i in work.items for t in i.prompt
    ]
    assert folded.digest() != work.digest()
    assert fold(work, 10_001) is work


@pytest.mark.parametrize("percent", [0, 1, 50, 90, 99, 100])
def test_percentiles_are_numpys(percent: float) -> None:
    values = [3.0, 1.5, 8.25, 2.0, 11.0, 0.5, 7.0]

    assert percentile(values, percent) == pytest.approx(numpy.percentile(values, percent))


def test_a_line_has_the_keys_of_other_engines_runs() -> None:
    line = record(workload("decode:8:128:256:11"), 2.0, "engine-1", tp=2)

    assert list(line.items()) == [
        ("name", "decode:8:128:256:11"),
        ("prompt_tokens", 1024),
        ("output_tokens", 2048),
        ("seconds", 2.0),
        ("out_tok_s", 1024.0),
        ("engine", "engine-1"),
        ("digest", "e0d9dc303bd9"),
        ("tp", 2),
    ]


def test_a_prefill_line_has_the_rate_of_prompt_tokens() -> None:
    assert record(workload("prefill:4:100:1"), 0.5, "e")["prompt_tok_s"] == 800.0


def test_the_summary_has_the_labels_of_other_benchmarks() -> None:
    times = Times(seconds=2.0, first=[0.1, 0.3], each=[0.01, 0.02], gaps=[0.01, 0.03])
    line = record(workload("decode:2:10:20:1"), 2.0, "e", **latencies(times))

    text = "\n".join(summary(line, 2))

    for label, value in [
        ("Output token throughput (tok/s):", "20.00"),
        ("Total token throughput (tok/s):", "30.00"),
        ("Mean TTFT (ms):", "200.00"),
        ("Median TPOT (ms):", "15.00"),
        ("P99 ITL (ms):", "29.80"),
    ]:
        assert [row.split()[-1] for row in text.splitlines() if row.startswith(label)] == [value]


def sides(order: list[str]) -> list[Side]:
    def side(name: str, seconds: list[float]) -> Side:
        left = iter(seconds)

        def time(work: Any) -> tuple[float, dict[str, Any]]:
            order.append(name)
            return next(left), {}

        return Side(name, time, arrivals=name == "ours")

    return [side("ours", [9.0, 1.0, 2.0, 3.0]), side("theirs", [9.0, 6.0, 4.0, 5.0])]


def test_engines_take_turns_and_medians_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    order: list[str] = []
    work = workload("decode:2:10:20:1")
    comparison = Comparison(
        sides(order), MACHINE, SIZE, at_once=2, repeat=3, out=tmp_path / "lines.jsonl"
    )

    comparison.warm_up(workload("decode:1:3:8:99"))
    comparison.run(work)
    comparison.show()

    assert order == ["ours", "theirs"] * 4
    share = 100 * floor(SIZE, MACHINE, work).total / 2
    assert comparison.rows() == [
        [work.name, "ours", "2.000", "20.0", f"{share:.0f}%", ""],
        [work.name, "theirs", "5.000", "8.0", f"{share * 2 / 5:.0f}%", "2.50x"],
    ]
    printed = capsys.readouterr()
    lines = [json.loads(line) for line in printed.out.splitlines()]
    assert [line["engine"] for line in lines] == ["ours", "theirs"] * 3
    assert [line["seconds"] for line in lines] == [1.0, 6.0, 2.0, 4.0, 3.0, 5.0]
    assert (tmp_path / "lines.jsonl").read_text() == printed.out
    assert "2.50x" in printed.err


def test_a_peer_without_arrivals_sits_such_a_workload_out() -> None:
    order: list[str] = []
    comparison = Comparison(sides(order), MACHINE, SIZE, at_once=2)

    comparison.run(workload("mixed:3:100:1:0"))

    assert order == ["ours"]


def test_the_engine_is_a_side_with_its_latencies(fake_llm: Any) -> None:
    llm = fake_llm()
    llm.config = type("C", (), {"parallel": type("P", (), {"tensor": 2})})

    side = engine_side(llm)
    _, further = side.time(workload("decode:2:4:5:1"))

    assert side.name.startswith("plait")
    assert further["tp"] == 2
    assert further["mean_tpot_ms"] == pytest.approx(2.0)
