"""Draws the latencies and throughputs of runs on a server as one SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugins.apps.bench.report import percentile
from plugins.apps.bench.serving_report import HEADINGS
from plugins.apps.plan.colours import colours

if TYPE_CHECKING:
    from jinja2 import Template

Run = tuple[Mapping[str, Any], Mapping[str, Sequence[float]]]
WIDTH, HEIGHT = 360.0, 190.0  # of a panel's field, in pixels
POINTS = 120  # of a curve
PERCENTS = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99)


@dataclass(frozen=True)
class Axis:
    """Milliseconds from the bottom of a panel to its top, by their logarithm."""

    low: float
    high: float

    @classmethod
    def around(cls, values: Sequence[float]) -> Axis:
        """Whole steps of 1, 2, 5, 10, ... that hold all values."""
        low, high = max(min(values), 1e-3), max(*values, 2e-3)
        steps = list(_steps(low / 10, high * 10))
        below = max(step for step in steps if step <= low * 1.0001)
        above = min(step for step in steps if step > high)
        return cls(below, above)

    def y(self, value: float) -> float:
        """Where a value stands, in pixels from the top."""
        share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return HEIGHT * (1 - share)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Where there are lines, with what is written there."""
        steps = list(_steps(self.low, self.high))
        if len(steps) > 8:
            steps = [s for s in steps if math.isclose(math.log10(s) % 1, 0, abs_tol=1e-6)]
        return [(self.y(step), f"{step:g}") for step in steps]


@dataclass(frozen=True)
class Panel:
    """One kind of latency, a curve for each run."""

    title: str
    axis: Axis
    across: list[tuple[float, str]]  # percentiles that are marked
    curves: list[tuple[int, str]]  # the run, and its path


def draw(runs: Sequence[Run]) -> str:
    """The SVG: a panel for each latency over the percentiles, and bars of the throughputs.

    `runs`: JSON lines of runs with the values in ms behind their percentiles.
    """
    most = max(max((line["out_tok_s"] for line, _ in runs), default=0.0), 1e-9)
    return _template().render(
        panels=list(_panels(runs)),
        runs=[(name(line), line["out_tok_s"], line["out_tok_s"] / most) for line, _ in runs],
        colours=colours(len(runs)),
        width=WIDTH,
        height=HEIGHT,
    )


def name(line: Mapping[str, Any]) -> str:
    """What a run is called in a legend."""
    load = ""
    if line["concurrency"]:
        load = f", {line['concurrency']} at a time"
    elif line["rate"]:
        load = f", {line['rate']:g} a second"
    return f"{line['engine']} {line['name']}{load}"


def _panels(runs: Sequence[Run]) -> Iterator[Panel]:
    for key, (title, label) in HEADINGS.items():
        found = [(number, sorted(values[key])) for number, (_, values) in enumerate(runs)]
        found = [(number, values) for number, values in found if values]
        if not found:
            continue
        longest = max(len(values) for _, values in found)
        marked = [p for p in PERCENTS if p < 100 * (1 - 1 / max(longest, 3))]
        furthest = _nines(100 * (1 - 1 / max(longest, 3)))
        # two tokens that are read in one go are no time apart: leave the fastest hundredth out
        ends = [v for _, values in found for v in (percentile(values, 1), values[-1])]
        axis = Axis.around(ends)
        curves = [(number, _curve(values, axis, furthest)) for number, values in found]
        across = [(WIDTH * _nines(p) / furthest, f"{p:g}") for p in marked]
        yield Panel(f"{title} ({label}), ms", axis, across, curves)


def _curve(values: Sequence[float], axis: Axis, furthest: float) -> str:
    end = _nines(100 * (1 - 1 / max(len(values), 3)))
    points = []
    for step in range(POINTS + 1):
        nines = end * step / POINTS
        value = percentile(values, 100 * (1 - 10**-nines))
        points.append(f"{WIDTH * nines / furthest:.1f},{axis.y(value):.1f}")
    return "M" + "L".join(points)


def _nines(percent: float) -> float:
    """0 for 0 %, 1 for 90 %, 2 for 99 %: the slowest get as much room as all others."""
    return -math.log10(1 - percent / 100)


def _steps(low: float, high: float) -> Iterator[float]:
    power = math.floor(math.log10(low))
    while 10**power <= high:
        for step in (1, 2, 5):
            if low * 0.9999 <= step * 10**power <= high * 1.0001:
                yield step * 10.0**power
        power += 1


@cache
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader

    folder = FileSystemLoader(Path(__file__).parent / "templates")
    return Environment(loader=folder, autoescape=True, trim_blocks=True).get_template(
        "plot.svg.jinja"
    )
