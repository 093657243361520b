"""What a run leaves in its trace, and that the file opens however the run ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import plait_trace
import pytest
from plait_trace.file import REQUESTS, STEPS

from core import LLM, EngineDead, SamplingParams
from core.errors import UserError

PROMPTS = [list(b"The wind"), list(b"A"), list(b"Once upon a time")]
SMALL = {"page_size": 4, "pages": 64}

Events = list[dict[str, Any]]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "trace.json"
    monkeypatch.setenv("PLAIT_TRACE", str(path))
    return path


def engine(**settings: Any) -> LLM:
    """With steps that are launched before the one before is over, as on a GPU."""
    words: dict[str, Any] = {
        "device": "cpu",
        "plugins": ["plait-trace"],
        "cache": SMALL,
        "executor": {"use": "local", "overlap": "on"},
    }
    return LLM("tiny", **(words | settings))


def params(tokens: int, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, **more)


def read(path: Path) -> Events:
    """The events; AssertionError if the viewer could not place one."""
    events: Events = json.loads(path.read_text())
    for event in events:
        assert event["ph"] in "MXiC"
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["ph"] == "M" or event["ts"] >= 0
        assert event["ph"] != "X" or event["dur"] >= 0
    return events


def slices(events: Events, process: int) -> Iterator[Events]:
    """The slices of each track, in the order of time; AssertionError if some overlap."""
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X" and event["pid"] == process:
            tracks[event["tid"]].append(event)
    for track in tracks.values():
        track.sort(key=lambda event: event["ts"])
        assert all(a["ts"] + a["dur"] <= b["ts"] + 0.2 for a, b in pairwise(track))
        yield track


def names(track: Events) -> list[str]:
    return [event["name"] for event in track]


def test_a_request_is_queued_then_computed_then_decodes(file: Path) -> None:
    with engine() as llm:
        llm.generate(PROMPTS, params(5))
    tracks = list(slices(read(file), REQUESTS))
    assert [names(track) for track in tracks] == [["queued", "prefill", "decode"]] * 3
    ends = [track[-1]["args"] for track in tracks]
    assert sorted(end.pop("prompt_tokens") for end in ends) == sorted(map(len, PROMPTS))
    for track, end in zip(tracks, ends, strict=True):
        assert end == {
            "output_tokens": 5, "cached_tokens": 0, "preemptions": 0, "finish_reason": "length",
        }  # fmt: skip
        for one, next_ in pairwise(track):
            assert one["ts"] + one["dur"] == pytest.approx(next_["ts"], abs=0.2)


def test_every_sample_has_a_track_with_a_name(file: Path) -> None:
    with engine() as llm:
        llm.generate(PROMPTS[0], SamplingParams(n=2, max_tokens=3, ignore_eos=True))
    events = read(file)
    named = [e["tid"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"]
    assert len(set(named)) == 1 + 2  # the steps, and two samples
    assert len(list(slices(events, REQUESTS))) == 2


def test_steps_say_what_they_compute(file: Path) -> None:
    with engine(max_num_batched_tokens=8, max_num_seqs=2) as llm:
        llm.generate(PROMPTS, params(4))
    events = read(file)
    (steps,) = slices(events, STEPS)
    tokens = [step["args"]["tokens"] for step in steps]
    assert max(tokens) <= 8
    # whatever else was on its way when a request ended
    assert sum(tokens) >= sum(map(len, PROMPTS)) + 3 * 3
    waiting = [e["args"]["waiting"] for e in events if e["name"] == "requests" and e["ph"] == "C"]
    assert max(waiting) > 0
    owned = [e["args"]["owned"] for e in events if e["name"] == "pages"]
    assert max(owned) > 0
    assert len(owned) == len(steps)


def test_a_step_lasts_from_its_launch(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine(executor={"use": "local", "overlap": "off"}) as llm:
        submit = llm.engine.executor.submit

        def slow(plan: Any) -> Any:
            time.sleep(0.02)
            return submit(plan)

        monkeypatch.setattr(llm.engine.executor, "submit", slow)
        llm.generate(PROMPTS[0], params(3))
    (steps,) = slices(read(file), STEPS)
    assert all(step["dur"] > 15000 for step in steps)
    (track,) = slices(read(file), REQUESTS)
    assert track[1]["dur"] > 15000  # prefill; nobody stood in the queue meanwhile


def test_a_preempted_request_is_marked(file: Path) -> None:
    with engine(cache={"page_size": 4, "pages": 8}, max_model_len=32) as llm:
        llm.generate(PROMPTS, params(12))
        assert llm.engine.statistics()["preemptions"]
    marks = [event["name"] for event in read(file) if event["ph"] == "i"]
    assert set(marks) == {"preempted"}


def test_who_never_ran_was_queued(file: Path) -> None:
    with engine(max_num_seqs=1) as llm:
        stream = llm.stream(PROMPTS[0], params(9))
        next(stream)
        id = llm.engine.add(PROMPTS[1], params(9))
        llm.engine.abort(id)
        stream.close()
    assert sorted(map(names, slices(read(file), REQUESTS)), key=len) == [
        ["queued"],
        ["queued", "prefill", "decode"],
    ]


def test_a_step_that_comes_too_late_for_a_request_does_not_begin_it_anew(file: Path) -> None:
    """The next step is on its way when a token ends the text."""
    with engine() as llm:
        (output,) = llm.generate(PROMPTS[0], params(3))
        stop = SamplingParams(temperature=0, stop_token_ids=output.outputs[0].token_ids[2:])
        (output,) = llm.generate(PROMPTS[0], stop)
        assert output.outputs[0].finish_reason == "stop"
        llm.generate(PROMPTS[1], params(3))
    tracks = list(slices(read(file), REQUESTS))
    assert [names(track) for track in tracks] == [["queued", "prefill", "decode"]] * 3


def test_nothing_but_running_requests_stays_in_memory(file: Path) -> None:
    with engine() as llm:
        for _ in range(20):
            llm.generate(PROMPTS, params(2))
        requests = plait_trace.observer._requests
        assert not requests._running
        assert len(requests._ended) + len(requests._ended_before) <= 2 * len(PROMPTS)


def test_a_later_engine_has_a_file_of_its_own(file: Path) -> None:
    for _ in range(2):
        with engine() as llm:
            llm.generate(PROMPTS[0], params(2))
    for path in (file, file.with_stem("trace-2")):
        assert len(list(slices(read(path), REQUESTS))) == 1


def test_engines_side_by_side_share_a_file(file: Path) -> None:
    with engine() as one, engine() as other:
        one.generate(PROMPTS[0], params(2))
        other.generate(PROMPTS[1], params(2))
    assert len(list(slices(read(file), REQUESTS))) == 2
    assert list(file.parent.glob("*.json")) == [file]


def test_the_trace_of_an_engine_that_died_has_all_of_it(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine() as llm:
        submit, steps = llm.engine.executor.submit, iter(range(4))

        def fail(plan: Any) -> Any:
            if next(steps, None) is None:
                raise EngineDead("rank 1 is gone")
            return submit(plan)

        monkeypatch.setattr(llm.engine.executor, "submit", fail)
        with pytest.raises(EngineDead):
            llm.generate(PROMPTS, params(20))
    last = [track[-1] for track in slices(read(file), REQUESTS)]
    assert [event["args"] for event in last] == [{"finish_reason": "engine stopped"}] * 3


def test_a_full_disk_ends_the_trace_and_not_the_run(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = os.pwrite

    def short(number: int, data: bytes, at: int) -> int:
        return write(number, data[:100] if at > 1500 else data, at)

    monkeypatch.setattr(os, "pwrite", short)
    with engine() as llm:
        (output,) = llm.generate(PROMPTS[0], params(30))
    assert len(output.outputs[0].token_ids) == 30
    assert f"the trace ends here: {file}: the disk is full" in caplog.text
    assert 1000 < len(file.read_text()) < 2500
    read(file)


def run(file: Path) -> subprocess.Popen[str]:
    words = [
        "model.path=tiny", "model.device=cpu", "run=generate", "run.prompt=The",
        "run.params.max_tokens=1000", "run.params.ignore_eos=true", "-p", "plait-trace",
    ]  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-m", "core.run", *words],
        env={**os.environ, "PLAIT_TRACE": str(file)}, cwd=file.parent,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_file_opens_however_the_process_ends(tmp_path: Path, ending: signal.Signals) -> None:
    file = tmp_path / "trace.json"
    process = run(file)
    try:
        limit = time.monotonic() + 60
        while not file.exists() or file.stat().st_size < 20000:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < limit
            time.sleep(0.02)
        process.send_signal(ending)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    (steps,) = slices(read(file), STEPS)
    assert len(steps) > 10
    if ending == signal.SIGINT:
        (track,) = slices(read(file), REQUESTS)
        assert names(track) == ["queued", "prefill", "decode"], err


def test_a_place_where_nothing_can_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (tmp_path, tmp_path / "nowhere" / "trace.json"):
        monkeypatch.setenv("PLAIT_TRACE", str(place))
        with pytest.raises(UserError, match=r"there is no such folder, or no file can be there"):
            engine()
