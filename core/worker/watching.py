"""Observers as a rank knows them: which rows they watch, and their turn in a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from core.types import Watched

if TYPE_CHECKING:
    from torch import nn

    from core.interfaces import Observer
    from core.parallel import Communicator
    from core.types import Admission, Batch, Ints, StepPlan

T = TypeVar("T")

Asked = list[tuple["Observer", list[Watched]]]


class Row(NamedTuple):
    """A request that asks for observers."""

    admission: Admission
    observers: list[Observer]


class Watching:
    """Costs a step without such requests nothing but a look at an empty dict."""

    def __init__(self, observers: Sequence[Observer], model: nn.Module, comm: Communicator) -> None:
        self._observers = observers
        self._rows: dict[int, Row] = {}
        for observer in observers:
            observer.prepare(model, comm)

    def admit(self, admissions: Sequence[Admission]) -> None:
        if self._observers:
            for admission in admissions:
                asked = [o for o in self._observers if o.asked(admission.params)]
                if asked:
                    self._rows[admission.row] = Row(admission, asked)

    def release(self, rows: Ints) -> None:
        if self._rows:
            for row in rows.tolist():
                self._rows.pop(row, None)

    def of_step(self, plan: StepPlan) -> Asked:
        """Who looks at this step, and at what. Empty for most."""
        if not self._rows:
            return []
        found: dict[Observer, list[Watched]] = {}
        ends = np.cumsum(plan.counts).tolist()
        for b, row in enumerate(plan.rows.tolist()):
            if (held := self._rows.get(row)) is not None:
                count, admission = int(plan.counts[b]), held.admission
                watched = Watched(
                    b=b,
                    first=ends[b] - count,
                    count=count,
                    start=int(plan.starts[b]),
                    prompt_length=admission.prompt_length,
                    params=admission.params,
                )
                for observer in held.observers:
                    if observer.looks(watched):
                        found.setdefault(observer, []).append(watched)
        # in the same order on every rank, because observers may talk to each other
        return [(o, found[o]) for o in self._observers if o in found]


def observed(
    step: Callable[[], T], batch: Batch, asked: Asked
) -> tuple[T, dict[str, Mapping[int, Any]]]:
    """Run a step, seen by every observer of `asked`. -> its result, and by name what they saw."""
    extras: dict[str, Mapping[int, Any]] = {}

    def seen_by(observer: Observer, watched: list[Watched], inner: Callable[[], T]) -> T:
        result, extras[observer.name] = observer.observe(inner, batch, watched)
        return result

    for observer, watched in asked:
        step = partial(seen_by, observer, watched, step)
    return step(), extras
