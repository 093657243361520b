"""Sampled ids on the host, for the rows whose processors look at them there."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from core.landed import Landed
from core.sampling import columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from core.types import Admission, Ints


class Echo:
    """What was sampled for each row that needs `columns.HOST`, in the order of the steps.

    Ids are copied behind the step that samples them, with an event. So asking for them waits for
    that step and not for the next one, whose forward pass may be running meanwhile.
    """

    def __init__(self) -> None:
        self._outputs: dict[int, list[int]] = {}  # by row
        # what comes, with the lists that it is for: place among the ids, list to append to
        self._flights: deque[tuple[Landed, list[tuple[int, list[int]]]]] = deque()

    def admit(self, admission: Admission, needs: int) -> None:
        """A request takes a row. A result still on its way to the last holder goes to his list."""
        self._outputs.pop(admission.row, None)
        if needs & columns.HOST:
            self._outputs[admission.row] = admission.tokens[admission.prompt_length :].tolist()

    def release(self, rows: Ints) -> None:
        """These rows are free."""
        if self._outputs:
            for row in rows.tolist():
                self._outputs.pop(row, None)

    def send(self, rows: Ints, ids: Tensor) -> None:
        """ids [S] were sampled for `rows` [S]: let those that somebody looks at come here."""
        outputs = [(s, o) for s, row in enumerate(rows.tolist()) if (o := self._outputs.get(row))
                   is not None]  # fmt: skip
        if not outputs:
            return
        self._flights.append((Landed.of(ids), outputs))
        while self._flights and self._flights[0][0].done():
            self._land()

    def output(self, row: int) -> Sequence[int]:
        """Every id that was sampled for a row. Waits for the last step that was sent."""
        while self._flights:
            self._land()
        return self._outputs[row]

    def _land(self) -> None:
        landed, outputs = self._flights.popleft()
        values = landed.keep().tolist()
        for s, output in outputs:
            output.append(values[s])
