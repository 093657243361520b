"""Traces of steps: the device's idle time against brute force, its kernels, and whole runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.engine import Engine
from core.run import main
from plugins.apps.bench.trace import SHOWN, Times, device_times, kernel_rows, summary
from tests.tiny import save_tiny

CONFIG = str(Path(__file__).resolve().parents[3] / "configs" / "qwen3-bench.yaml")


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), min_size=1, max_size=12))
def test_busy_time_is_the_union_of_all_events(spans: list[tuple[int, int]]) -> None:
    events = [{"cat": "kernel", "ts": start, "dur": length} for start, length in spans]
    events += [{"cat": "cpu_op", "ts": 0, "dur": 100}, {"ph": "M"}, {"cat": "kernel", "ts": 3}]
    covered = [any(a <= t < a + n for a, n in spans) for t in range(100)]
    first, last = min(a for a, _ in spans), max(a + n for a, n in spans)
    longest = run = 0
    for t in range(first, last):
        run = 0 if covered[t] or any(a == t for a, _ in spans) else run + 1
        run = 1 if not covered[t] and any(a == t for a, _ in spans) else run
        longest = max(longest, run)
    found = device_times(events)
    assert found is not None
    assert (found.span, found.busy) == (last - first, sum(covered))
    assert found.events == len(spans)
    assert found.gap == longest


def test_a_host_without_a_device_is_said_to_be_one() -> None:
    cpu = [{"cat": "cpu_op", "ts": 0, "dur": 5, "name": "add"}]
    assert device_times(cpu) is None
    assert kernel_rows(cpu, 5) == []
    said = ["3 requests decode: 12 us a step", "no device was traced"]
    assert summary("3 requests decode", 12.0, 9.0, None, 5) == said


def test_times_are_told_for_a_step() -> None:
    times = Times(span=10_000, busy=9_000, events=400, gap=70)
    assert summary("8 requests decode", 1200, 310, times, 10) == [
        "8 requests decode: 1,200 us a step",
        "host: 310 us for a step that finds the device idle",
        "device: busy 900 us, idle 100.0 us (10.0%) a step, longest gap 70.0 us",
        "device: 40.0 kernels and copies a step",
    ]


def test_kernels_are_told_by_the_time_they_take() -> None:
    events = [{"cat": "kernel", "name": "product", "ts": 0, "dur": d} for d in (30, 50, 40)]
    events += [{"cat": "gpu_memcpy", "name": "copy", "ts": 0, "dur": 80}]
    assert kernel_rows(events, 2) == [
        ["product", "60.0", "60.0%", "1.5", "40.0"],
        ["copy", "40.0", "40.0%", "0.5", "80.0"],
    ]
    events += [{"cat": "kernel", "name": f"small {n}", "ts": 0, "dur": 1} for n in range(SHOWN)]
    rows = kernel_rows(events, 2)
    assert len(rows) == SHOWN + 1
    assert rows[-1] == ["2 others", "1.0", "0.9%", "1.0", "1.0"]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory, device: str) -> list[str]:
    path = save_tiny(tmp_path_factory.mktemp("tiny"))
    small = ["model.max_length=null", "cache.pages=60", "cache.page_size=16"]
    scheduler = ["scheduler.max_num_seqs=8"]
    return [CONFIG, f"model.path={path}", f"model.device={device}", *small, *scheduler]


def test_steps_are_traced_to_a_file(words, device, tmp_path, capsys) -> None:
    path = tmp_path / "trace.json"
    asked = [f"run.trace={path}", "run.trace_steps=4", "run.workloads=[decode:3:9:8:1]"]
    assert main([*words, *asked]) == 0
    said = capsys.readouterr().err
    assert "3 requests decode: " in said
    assert f"trace of 4 steps: {path}" in said
    assert ("no device was traced" in said) == (device == "cpu")
    assert len(json.loads(path.read_text())["traceEvents"]) > 100


def test_steps_with_prompts_are_traced(words, device, tmp_path, capsys) -> None:
    path = tmp_path / "trace.json"
    asked = [f"run.trace={path}", "run.workloads=[prefill:40:32:1]"]
    assert main([*words, *asked, "scheduler.max_num_batched_tokens=64"]) == 0
    said = capsys.readouterr().err
    assert "prompts, 64 tokens a step: " in said
    assert f"trace of 13 steps: {path}" in said, "20 steps, but for the first 7"
    assert ("calls a step" in said) == (device != "cpu")


PROMPTS = [
    # one prompt in a step, by the requests that may run, and by the pages there are
    (["prefill:30:32:1", "scheduler.max_num_seqs=1"], "prompts, 32 tokens a step: ", 23),
    (["prefill:30:50:1", "cache.pages=6"], "prompts, 50 tokens a step: ", 23),
    # the second of two does not fit, and is not cut
    (["prefill:20:48:1", "scheduler.chunked_prefill=false"], "prompts, 48 tokens a step: ", 13),
    # 80 tokens, and 39 times the 16 that are not in the prefix cache
    (["shared_prefix:40:64:16:1"], "prompts, 64 tokens a step: ", 4),
    (["prefill:2:200:1", "scheduler.max_num_batched_tokens=16"], "prompts, 16 tokens a step: ", 18),
    (["prefill:64:8:1", "scheduler.max_num_batched_tokens=512"], "prompts, 64 tokens a step: ", 1),
]


@pytest.mark.parametrize(("asked", "what", "steps"), PROMPTS, ids=lambda value: str(value))
def test_what_is_told_of_prompts_is_what_was_read(
    words, tmp_path, capsys, asked, what, steps
) -> None:
    work, *more = asked
    usual = [f"run.trace={tmp_path}/t.json", "scheduler.max_num_batched_tokens=64"]
    assert main([*words, *usual, f"run.workloads=[{work}]", *more]) == 0
    said = capsys.readouterr().err
    assert what in said
    assert f"trace of {steps} steps: " in said


@pytest.mark.parametrize(
    "asked", [["decode:1:120:8:1"], ["decode:8:9:8:1", "scheduler.max_num_seqs=8"]], ids=str
)
def test_whoever_is_said_to_decode_does(words, tmp_path, capsys, monkeypatch, asked) -> None:
    """Prompts of 60 steps, and fewer tokens in a step than there may be requests."""
    planned = []
    launch = Engine._launch
    monkeypatch.setattr(
        Engine, "_launch", lambda self, plan: (planned.append(plan), launch(self, plan))[1]
    )
    work, *more = asked
    usual = [f"run.trace={tmp_path}/t.json", "run.trace_steps=4"]
    budget = "scheduler.max_num_batched_tokens=2"
    assert main([*words, *usual, f"run.workloads=[{work}]", budget, *more]) == 0
    running = min(2, int(work.split(":")[1]))
    assert f"{running} requests decode: " in capsys.readouterr().err
    assert [len(plan.rows) for plan in planned[-4:]] == [running] * 4
    assert all(plan.sample.all() for plan in planned[-4:])


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (["run.workloads=[prefill:3:32:1]"], "Give it more prompts"),
        (["run.trace_steps=0"], "run.trace takes run.trace_steps of 1 or more"),
        (["run.trace_steps=300"], "Lower run.trace_steps, or raise model.max_length"),
        (["run.workloads=[mixed:5:200:3:0]"], "whose requests start together"),
        (
            ["cache.pages=16", "run.workloads=[decode:8:25:8:1]"],
            "of the 8 requests of workload 'decode:8:25:8:1' have room in the cache together",
        ),
        (
            ["run.trace_steps=200"],  # they have room at first
            "of the 8 requests of workload 'decode:8:9:8:1' have room in the cache together",
        ),
        (["run.workloads=[decode:3:9:1:1]"], "is read within 7 steps of up to"),
    ],
)
def test_a_trace_that_cannot_be_made_is_refused(words, tmp_path, capsys, asked, sentence) -> None:
    usual = [f"run.trace={tmp_path}/t.json", "run.trace_steps=4", "run.workloads=[decode:8:9:8:1]"]
    assert main([*words, *usual, *asked]) == 2
    assert sentence in capsys.readouterr().err
