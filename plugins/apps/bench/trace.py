"""A profiler's trace of a few steps: how long the device had nothing to do in them, and which
kernels took the rest."""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from core.errors import UserError
from plugins.apps.bench.plans import Plans
from plugins.apps.output_files import writing
from plugins.apps.terminal import show_table

if TYPE_CHECKING:
    from torch.profiler import profile

    from core.llm import LLM
    from core.types import StepPlan
    from plugins.apps.bench.workloads import Item, Workload

UNTRACED = 20  # steps before the first that is traced, once every request decodes
FIRST_PROMPTS = 2  # the same of steps with prompts
ALONE = 5  # steps that find the device idle, after those
SHOWN = 12  # kernels that take the most time
NAME = 60  # characters of a kernel's name
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")  # categories of the trace's events


@dataclass(frozen=True)
class Times:
    """Microseconds of all traced steps together, on the device."""

    span: float  # from the first event to the end of the last
    busy: float  # with at least one event
    events: int
    gap: float  # the longest time without any

    @property
    def idle(self) -> float:
        return self.span - self.busy


def device_times(events: Iterable[Mapping[str, Any]]) -> Times | None:
    """What the events of a Chrome trace say about the device; None when none is the device's.

    Kernels may overlap: with programmatic dependent launch one starts while another ends.
    """
    spans = sorted(
        (float(event["ts"]), float(event["ts"]) + float(event["dur"]))
        for event in _on_device(events)
    )
    if not spans:
        return None
    first, until = spans[0][0], spans[0][0]
    busy = gap = 0.0
    for start, stop in spans:
        gap = max(gap, start - until)
        busy += max(0.0, stop - max(start, until))
        until = max(until, stop)
    return Times(until - first, busy, len(spans), gap)


def _on_device(events: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    return (event for event in events if event.get("cat") in ON_DEVICE and "dur" in event)


def kernel_rows(events: Iterable[Mapping[str, Any]], steps: int) -> list[list[str]]:
    """Name, us a step, share of all, calls a step and median us of the kernels that take most."""
    found: dict[str, list[float]] = defaultdict(list)
    for event in _on_device(events):
        found[str(event.get("name"))].append(float(event["dur"]))
    ordered = sorted(found.items(), key=lambda item: -sum(item[1]))
    named = [(name[:NAME], times) for name, times in ordered[:SHOWN]]
    if others := [time for _, times in ordered[SHOWN:] for time in times]:
        named.append((f"{len(ordered) - SHOWN} others", others))
    whole = sum(sum(times) for _, times in named) or 1.0
    return [
        [
            name,
            f"{sum(times) / steps:,.1f}",
            f"{100 * sum(times) / whole:.1f}%",
            f"{len(times) / steps:,.1f}",
            f"{median(times):,.1f}",
        ]
        for name, times in named
    ]


def show_trace(llm: LLM, work: Workload, path: str, steps: int) -> None:
    """Write a trace of `steps` steps of a workload to `path`: of those that take in its prompts,
    if each request is to give a single token, otherwise of those in which all of them decode."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    plans = Plans(llm.engine)
    decoding = 0
    if all(item.output == 1 for item in work.items):
        _reading(llm, work, plans)
    else:
        decoding = _decoding(llm, work, steps, plans)
    alone = _alone(plans)
    kinds = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        kinds.append(ProfilerActivity.CUDA)
    _wait_for_device()
    first = len(plans.made)
    with profile(activities=kinds) as profiler:
        began = time.perf_counter()
        while len(plans.made) < first + steps and plans.step():
            pass
        host = 1e6 * (time.perf_counter() - began)
        _wait_for_device()
    traced = plans.made[first:]
    what = _decoded(work, decoding, traced) if decoding else _read(llm, work, traced)
    steps = len(traced)
    host /= steps
    events = _save(profiler, path)
    for line in summary(what, host, alone, device_times(events), steps):
        print(line, file=sys.stderr)
    if rows := kernel_rows(events, steps):
        header = ["on the device", "us a step", "share", "calls a step", "median us"]
        show_table(header, rows, right=range(1, 5), stream=sys.stderr)
    print(f"trace of {steps} steps: {path} (open it in https://ui.perfetto.dev)", file=sys.stderr)


def _alone(plans: Plans) -> float:
    """Microseconds of the host's clock for a step that finds the device idle, by the median. On
    CUDA that is what the host does for it, without what the device then takes."""
    times = []
    for _ in range(ALONE):
        _wait_for_device()
        began = time.perf_counter()
        if plans.step():
            times.append(1e6 * (time.perf_counter() - began))
    return median(times or [0.0])


def _wait_for_device() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _add(llm: LLM, items: Iterable[Item], tokens: int) -> None:
    """Add requests that are to give so many tokens each."""
    from core.sampling.params import SamplingParams
    from plugins.apps.bench.workloads import TEMPERATURE

    for item in items:
        params = SamplingParams(temperature=TEMPERATURE, max_tokens=tokens, ignore_eos=True)
        llm.engine.add(item.prompt, params)


def _reading(llm: LLM, work: Workload, plans: Plans) -> None:
    """Add requests, and step a little."""
    _add(llm, work.items, 1)
    for _ in range(FIRST_PROMPTS):
        plans.step()


def _read(llm: LLM, work: Workload, traced: Sequence[StepPlan]) -> str:
    """What is in steps with prompts. UserError when there are none behind the first ones."""
    if not traced:
        budget = llm.engine.limits.max_num_batched_tokens
        raise UserError(
            f"workload {work.name!r} is read within {FIRST_PROMPTS + ALONE} steps of up to "
            f"{budget:,} tokens, and so many are not traced. Give it more prompts, or lower "
            "scheduler.max_num_batched_tokens."
        )
    tokens = sum(int(plan.counts.sum()) for plan in traced) / len(traced)
    return f"prompts, {tokens:,.0f} tokens a step"


def _decoding(llm: LLM, work: Workload, steps: int, plans: Plans) -> int:
    """Add requests, and step until all decode. -> how many they are."""
    engine = llm.engine
    budget = engine.limits.max_num_batched_tokens  # each request needs one of these in a step
    items = work.items[: min(engine.limits.max_num_seqs, budget)]
    # more tokens than there are steps, so that nobody ends while others begin or are traced
    tokens = sum(-(-len(i.prompt) // budget) + 1 for i in items)
    tokens += UNTRACED + ALONE + steps + 2
    longest = max(len(item.prompt) for item in items) + tokens
    if longest > engine.limits.max_length:
        raise UserError(
            f"a trace of {steps} steps of workload {work.name!r} needs {longest} tokens a request, "
            f"and the engine takes {engine.limits.max_length}. Lower run.trace_steps, or raise "
            "model.max_length."
        )
    _add(llm, items, tokens)
    # the last one to begin may read for many steps
    while plans.step() and (engine.statistics()["waiting"] or not plans.made[-1].sample.all()):
        pass
    for _ in range(UNTRACED):
        plans.step()
    return len(items)


def _decoded(work: Workload, requests: int, traced: Sequence[StepPlan]) -> str:
    """What is in steps of requests that decode. UserError unless all did so in each of them."""
    least = min((int(plan.sample.sum()) for plan in traced), default=0)
    if least < requests:
        raise UserError(
            f"only {least} of the {requests} requests of workload {work.name!r} have room in "
            "the cache together. Give it more memory, or trace a smaller workload."
        )
    return f"{requests} requests decode"


def summary(what: str, host: float, alone: float, device: Times | None, steps: int) -> list[str]:
    """Lines for people; `host`, `alone`: microseconds of a step by the host's clock."""
    lines = [f"{what}: {host:,.0f} us a step"]
    if device is None:
        return [*lines, "no device was traced"]
    share = 100 * device.idle / max(device.span, 1e-9)
    return [
        *lines,
        f"host: {alone:,.0f} us for a step that finds the device idle",
        f"device: busy {device.busy / steps:,.0f} us, idle {device.idle / steps:,.1f} us "
        f"({share:.1f}%) a step, longest gap {device.gap:,.1f} us",
        f"device: {device.events / steps:,.1f} kernels and copies a step",
    ]


def _save(profiler: profile, path: str) -> list[dict[str, Any]]:
    """Write what was traced. -> its events. UserError if it cannot be written.

    torch tells nobody when it cannot, and puts another file in the place of a device or a link.
    """
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(whole))
        try:
            data = whole.read_bytes()
        except FileNotFoundError:
            raise UserError(
                f"run.trace: torch cannot write its trace to {folder}. Make room there, or set "
                "TMPDIR to another place."
            ) from None
    with writing("trace", path):
        Path(path).write_bytes(gzip.compress(data) if path.endswith(".gz") else data)
    events: list[dict[str, Any]] = json.loads(data)["traceEvents"]
    return events
