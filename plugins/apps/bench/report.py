"""Times as figures: one JSON line a run, the labels of other engines' benchmarks, and a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plugins.apps.bench.measure import Times
from plugins.apps.bench.workloads import Workload

LATENCIES = (
    ("ttft", "Time to First Token", "TTFT"),
    ("tpot", "Time per Output Token (excl. 1st token)", "TPOT"),
    ("itl", "Inter-token Latency", "ITL"),
)
WIDTH = 50


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of `values` lie, interpolated between neighbours."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def record(work: Workload, seconds: float, engine: str, **further: Any) -> dict[str, Any]:
    """What every engine's benchmark prints about one run, in the same order."""
    line: dict[str, Any] = {
        "name": work.name,
        "prompt_tokens": work.prompt_tokens,
        "output_tokens": work.output_tokens,
        "seconds": round(seconds, 4),
        "out_tok_s": round(work.output_tokens / seconds, 1),
    }
    if work.name.startswith("prefill:"):
        line["prompt_tok_s"] = round(work.prompt_tokens / seconds, 1)
    return line | {"engine": engine, "digest": work.digest()} | further


def latencies(times: Times) -> dict[str, float]:
    """Mean, median and 99th percentile in ms: to the first token, a token, between two tokens."""
    found = {}
    for name, values in (("ttft", times.first), ("tpot", times.each), ("itl", times.gaps)):
        if values:
            found[f"mean_{name}_ms"] = round(1e3 * sum(values) / len(values), 2)
            found[f"median_{name}_ms"] = round(1e3 * percentile(values, 50), 2)
            found[f"p99_{name}_ms"] = round(1e3 * percentile(values, 99), 2)
    return found


def summary(line: dict[str, Any], requests: int) -> list[str]:
    """A run in the lines and labels that users know from `vllm bench`."""
    seconds = line["seconds"]
    total = line["prompt_tokens"] + line["output_tokens"]
    lines = [
        f" {line['name']} ".center(WIDTH, "="),
        labelled("Successful requests:", requests),
        labelled("Benchmark duration (s):", seconds),
        labelled("Total input tokens:", line["prompt_tokens"]),
        labelled("Total generated tokens:", line["output_tokens"]),
        labelled("Request throughput (req/s):", requests / seconds),
        labelled("Output token throughput (tok/s):", line["out_tok_s"]),
        labelled("Total token throughput (tok/s):", total / seconds),
    ]
    for name, heading, label in LATENCIES:
        if f"mean_{name}_ms" in line:
            lines.append(heading.center(WIDTH, "-"))
            for statistic in ("mean", "median", "p99"):
                value = line[f"{statistic}_{name}_ms"]
                lines.append(labelled(f"{statistic.title()} {label} (ms):", value))
    lines.append("=" * WIDTH)
    return lines


def labelled(label: str, value: float) -> str:
    """One line of a summary."""
    shown = f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{label:<40}{shown:>{WIDTH - 40}}"
