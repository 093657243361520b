"""Sampled ids on the host, for the rows whose processors look at them there."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import torch

from core.sampling import columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from core.types import Admission, Ints


class _Flight(NamedTuple):
    """Ids on their way to the host, and the lists that they are for."""

    outputs: list[tuple[int, list[int]]]  # place among the ids, list to append to
    ids: Tensor  # [S], on the host
    over: torch.cuda.Event | None  # the copy is done


class Echo:
    """What was sampled for each row that needs `columns.HOST`, in the order of the steps.

    Ids are copied behind the step that samples them, with an event. So asking for them waits for
    that step and not for the next one, whose forward pass may be running meanwhile.
    """

    def __init__(self) -> None:
        self._outputs: dict[int, list[int]] = {}  # by row
        self._flights: deque[_Flight] = deque()

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
        over = None
        if ids.is_cuda:
            ids = torch.empty(ids.shape, dtype=ids.dtype, pin_memory=True).copy_(
                ids, non_blocking=True
            )
            over = torch.cuda.Event()
            over.record()
        self._flights.append(_Flight(outputs, ids, over))
        while self._flights and (self._flights[0].over is None or self._flights[0].over.query()):
            self._land()

    def output(self, row: int) -> Sequence[int]:
        """Every id that was sampled for a row. Waits for the last step that was sent."""
        while self._flights:
            self._land()
        return self._outputs[row]

    def _land(self) -> None:
        outputs, ids, over = self._flights.popleft()
        if over is not None:
            over.synchronize()
        values = ids.tolist()
        for s, output in outputs:
            output.append(values[s])
