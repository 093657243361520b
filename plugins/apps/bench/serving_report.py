"""Answers of a server as figures: throughput, percentiles and goodput, in vLLM's labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from core.errors import UserError
from plugins.apps.bench.connection import Answer
from plugins.apps.bench.report import WIDTH, labelled, percentile, record
from plugins.apps.bench.workloads import Workload

HEADINGS = {
    "ttft": ("Time to First Token", "TTFT"),
    "tpot": ("Time per Output Token (excl. 1st token)", "TPOT"),
    "itl": ("Inter-token Latency", "ITL"),
    "e2el": ("End-to-end Latency", "E2EL"),
}
PERCENTILES = (90, 95, 99)
MOST_ERRORS = 5
LIMITED = ("ttft", "tpot", "e2el")
"""What a request has one value of, so that a limit can be set."""


@dataclass(frozen=True)
class Load:
    """How requests come. Neither number: as the workload says, or all at once."""

    concurrency: int | None = None  # clients that each wait for their answer
    rate: float | None = None  # requests a second
    burstiness: float = 1.0


def figures(
    work: Workload,
    load: Load,
    answers: Sequence[Answer],
    seconds: float,
    limits: Mapping[str, float],
    engine: str,
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """The JSON line of a run, and the times in ms that its percentiles are taken from.

    `limits`: milliseconds for "ttft", "tpot" and "e2el"; goodput counts requests within all.
    """
    if unknown := set(limits) - set(LIMITED):
        raise UserError(f"run.slo has {', '.join(sorted(unknown))}; it may hold {list(LIMITED)}.")
    pairs = [(i, a) for i, a in zip(work.items, answers, strict=True) if a.error is None]
    values: dict[str, list[float]] = {name: [] for name in HEADINGS}
    good = 0
    for item, answer in pairs:
        one = {"ttft": answer.tokens[0] - answer.sent, "e2el": answer.tokens[-1] - answer.sent}
        if item.output > 1:
            one["tpot"] = (one["e2el"] - one["ttft"]) / (item.output - 1)
        for name, value in one.items():
            values[name].append(1e3 * value)
        values["itl"] += [1e3 * (b - a) for a, b in pairwise(answer.tokens)]
        good += all(1e3 * one.get(name, 0.0) <= most for name, most in limits.items())
    made = sum(item.output for item, _ in pairs)
    read = sum(len(item.prompt) for item, _ in pairs)
    line = record(work, seconds, engine) | {
        "prompt_tokens": read,
        "output_tokens": made,
        "out_tok_s": round(made / seconds, 1),
        "total_tok_s": round((made + read) / seconds, 1),
        "concurrency": load.concurrency,
        "rate": load.rate,
        "burstiness": load.burstiness if load.rate else None,
        "completed": len(pairs),
        "failed": len(answers) - len(pairs),
        "errors": dict(Counter(a.error for a in answers if a.error).most_common(MOST_ERRORS)),
        "req_s": round(len(pairs) / seconds, 3),
        "goodput_req_s": round(good / seconds, 3) if limits else None,
        "slo": dict(limits),
        "tokens_per_event": round(made / max(1, sum(len(a.tokens) for _, a in pairs)), 3),
    }
    for name, found in values.items():
        if found:
            line[f"mean_{name}_ms"] = round(sum(found) / len(found), 3)
            line[f"median_{name}_ms"] = round(percentile(found, 50), 3)
            for percent in PERCENTILES:
                line[f"p{percent}_{name}_ms"] = round(percentile(found, percent), 3)
    return line, values


def summary(line: Mapping[str, Any]) -> list[str]:
    """A run in the lines and labels of `vllm bench serve`."""
    lines = [
        " Serving Benchmark Result ".center(WIDTH, "="),
        f"{line['name']:>{WIDTH}}",
        labelled("Successful requests:", line["completed"]),
        labelled("Failed requests:", line["failed"]),
    ]
    if line["concurrency"]:
        lines.append(labelled("Maximum request concurrency:", line["concurrency"]))
    if line["rate"]:
        lines.append(labelled("Request rate configured (RPS):", float(line["rate"])))
    lines += [
        labelled("Benchmark duration (s):", line["seconds"]),
        labelled("Total input tokens:", line["prompt_tokens"]),
        labelled("Total generated tokens:", line["output_tokens"]),
        labelled("Request throughput (req/s):", line["req_s"]),
    ]
    if line["goodput_req_s"] is not None:
        lines.append(labelled("Request goodput (req/s):", line["goodput_req_s"]))
    lines += [
        labelled("Output token throughput (tok/s):", line["out_tok_s"]),
        labelled("Peak concurrent requests:", line["peak_concurrent_requests"]),
        labelled("Total Token throughput (tok/s):", line["total_tok_s"]),
    ]
    for name, (heading, label) in HEADINGS.items():
        if f"mean_{name}_ms" in line:
            lines.append(heading.center(WIDTH, "-"))
            for statistic in ("mean", "median", "p99"):
                shown = float(line[f"{statistic}_{name}_ms"])
                lines.append(labelled(f"{statistic.title()} {label} (ms):", shown))
    return [*lines, "=" * WIDTH]
