"""Runs workloads on one engine or on several in turn, and prints their figures side by side."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from core import __version__
from plugins.apps.bench.measure import run
from plugins.apps.bench.report import latencies, record, summary
from plugins.apps.bench.roofline import Machine, ModelSize, floor
from plugins.apps.bench.workloads import Workload
from plugins.apps.output_files import append_line
from plugins.apps.terminal import show_table

if TYPE_CHECKING:
    from core.llm import LLM


@dataclass(frozen=True)
class Side:
    """One engine: `time` runs a workload and gives its seconds and whatever else it measured."""

    name: str
    time: Callable[[Workload], tuple[float, dict[str, Any]]]
    arrivals: bool = True  # whether it can be handed requests over time


def engine_side(llm: LLM) -> Side:
    """Plait itself."""

    def time(work: Workload) -> tuple[float, dict[str, Any]]:
        times = run(llm, work)
        return times.seconds, {"tp": llm.config.parallel.tensor} | latencies(times)

    return Side(f"plait-{__version__}", time)


@dataclass(frozen=True)
class Result:
    """All runs of one workload on one side."""

    work: Workload
    side: Side
    seconds: list[float]

    @property
    def median(self) -> float:
        return median(self.seconds)


class Comparison:
    """Runs and remembers. The first side is the one that the others are held against."""

    def __init__(
        self,
        sides: Sequence[Side],
        machine: Machine,
        size: ModelSize,
        *,
        at_once: int,
        repeat: int = 1,
        out: str | None = None,
    ) -> None:
        self.sides, self.machine, self.size = sides, machine, size
        self.at_once, self.repeat, self.out = at_once, repeat, out
        self.results: list[Result] = []

    def warm_up(self, work: Workload) -> None:
        """Let every side load its code and make its buffers, untimed."""
        for side in self.sides:
            side.time(work)

    def run(self, work: Workload) -> None:
        """Time a workload on every side, in turn, as often as asked; print each run at once."""
        sides = [side for side in self.sides if side.arrivals or not work.arrives]
        seconds: dict[str, list[float]] = {side.name: [] for side in sides}
        least = floor(self.size, self.machine, work, self.at_once).total
        for _ in range(self.repeat):
            for side in sides:
                spent, further = side.time(work)
                seconds[side.name].append(spent)
                share = {"roofline_percent": round(100 * least / spent, 1)}
                self._print(record(work, spent, side.name, **share, **further), work)
        self.results += [Result(work, side, seconds[side.name]) for side in sides]

    def _print(self, line: dict[str, Any], work: Workload) -> None:
        text = json.dumps(line)
        print(text, flush=True)
        if self.out is not None:
            append_line("out", self.out, text)
        if "mean_ttft_ms" in line:
            print("\n".join(summary(line, len(work.items))), file=sys.stderr, flush=True)

    def rows(self) -> list[list[str]]:
        """The table: a row for each workload and side, ratios against the first side."""
        rows = []
        for result in self.results:
            work, seconds = result.work, result.median
            prompts = work.name.startswith("prefill:")
            tokens = work.prompt_tokens if prompts else work.output_tokens
            own = next(r for r in self.results if r.work is work)
            least = floor(self.size, self.machine, work, self.at_once).total
            rows.append(
                [
                    work.name,
                    result.side.name,
                    f"{seconds:.3f}",
                    f"{tokens / seconds:,.1f}" + (" (prompt)" if prompts else ""),
                    f"{100 * least / seconds:.0f}%",
                    "" if result is own else f"{seconds / own.median:.2f}x",
                ]
            )
        return rows

    def show(self) -> None:
        """Print the table beside the JSON lines."""
        ratio = f"seconds / {self.sides[0].name}"
        header = ["workload", "engine", "seconds", "tok/s", "of roofline", ratio]
        if len(self.sides) == 1:
            header = header[:-1]
        rows = [row[: len(header)] for row in self.rows()]
        show_table(header, rows, right=(2, 3, 4, 5), stream=sys.stderr)
