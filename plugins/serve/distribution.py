"""How often a value fell between which bounds: a histogram that takes values by the thousand."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from prometheus_client.core import HistogramMetricFamily

MOST_HELD = 8192  # values that wait to be sorted in

REQUEST_SECONDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
FIRST_TOKEN_SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_SECONDS = (
    *(0.0005, 0.001, 0.0025, 0.005),  # below what vLLM tells apart: small models are faster
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
ANSWERS = (1.0, 2.0, 5.0, 10.0, 20.0)
"""Bounds of vLLM's histograms (vllm/v1/metrics/buckets.py): what is plotted side by side fits."""


def lengths(longest: int) -> tuple[float, ...]:
    """Bounds for numbers of tokens: 1, 2, 5, 10, 20, 50, ... up to `longest`."""
    found: list[float] = []
    scale = 1
    while scale <= longest:
        found += [float(step * scale) for step in (1, 2, 5) if step * scale <= longest]
        scale *= 10
    return tuple(found)


class Distribution:
    """Counts of values at most as large as each of some bounds, and their sum."""

    def __init__(self, name: str, help: str, bounds: Sequence[float]) -> None:
        self.name, self.help, self.bounds = name, help, tuple(bounds)
        self._counts = [0] * (len(self.bounds) + 1)  # the last: above every bound
        self._sum = 0.0
        self._array = np.array(self.bounds)
        self.held: list[float] = []

    def add(self, value: float) -> None:
        """One value, sorted in at once."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self._sum += value

    def settle(self) -> None:
        """Sort in what `held` holds. Whoever appends there calls this beyond MOST_HELD."""
        if self.held:
            values = np.array(self.held)
            self.held.clear()
            places = np.searchsorted(self._array, values)  # as bisect_left: a bound is included
            found = np.bincount(places, minlength=len(self._counts)).tolist()
            self._counts = [a + b for a, b in zip(self._counts, found, strict=True)]
            self._sum += float(values.sum())

    def family(self, labels: dict[str, str]) -> HistogramMetricFamily:
        """What a scrape gets."""
        self.settle()
        family = HistogramMetricFamily(self.name, self.help, labels=list(labels))
        buckets, seen = [], 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self._counts, strict=True):
            seen += count
            buckets.append((bound, seen))
        family.add_metric(list(labels.values()), buckets, self._sum)
        return family
