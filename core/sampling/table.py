"""The parameters of every running request as columns, on the host and on its device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from core.sampling import columns
from core.sampling.echo import Echo
from core.sampling.kernels import SamplingKernels
from core.sampling.rows import SampleRows

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from core.types import Admission, Ints
    from core.worker.staging import Staging


MANY = 64  # rows: kernels for many are others than those for few


class SamplingTable:
    """One row of parameters for each request row of a worker, on the host and on its device.

    The worker calls `admit` and `release` with the news of a plan, and `select` once a step.
    """

    def __init__(
        self,
        max_rows: int,
        vocab_size: int,
        max_length: int,
        device: torch.device | str,
        history: Tensor | None = None,
        staging: Staging | None = None,
        kernels: object = None,
    ) -> None:
        """`history` [R, > max_length] int32 holds every known token of each row, on the device.

        The caller writes the tokens of admitted requests there, `SampleRows.record` the sampled.
        `staging` takes arrays to the device; with None each call pins memory of its own.
        `kernels`: a kernel set, which draws if it is a `SamplingKernels`.
        """
        self.vocab_size, self.device = vocab_size, torch.device(device)
        if history is None:
            history = torch.zeros(max_rows, max_length + 1, dtype=torch.int32, device=device)
        self.history, self._staging = history, staging
        self.kernels = kernels if isinstance(kernels, SamplingKernels) else None
        width = len(columns.COLUMN)
        self.columns = torch.zeros(max_rows, width, dtype=torch.int32, device=device)  # [R, C]
        self.needs = np.zeros(max_rows, np.int64)  # [R] bits of core.sampling.columns
        self.admissions: list[Admission | None] = [None] * max_rows
        self.echo = Echo()
        self._last: tuple[Ints, dict[Any, Any]] | None = None  # the rows, and what is known of them

    def admit(self, admissions: Sequence[Admission]) -> None:
        """Fill rows with the parameters of the requests that take them."""
        if not admissions:
            return
        self._last = None
        for admission in admissions:
            self.admissions[admission.row] = admission
            self.needs[admission.row] = needs = columns.needs(admission)
            self.echo.admit(admission, needs)
        packed = np.stack([columns.pack(admission) for admission in admissions])
        rows = np.array([admission.row for admission in admissions], np.int32)
        sent = self.send(np.concatenate([rows[:, None], packed], axis=1))
        self.columns.index_copy_(0, sent[:, 0].long(), sent[:, 1:])

    def release(self, rows: Ints) -> None:
        """Forget the requests of these rows."""
        for row in rows.tolist():
            self.admissions[row] = None
        self.echo.release(rows)

    def close(self) -> None:
        """Let go of the last rows, which hold the table, too."""
        self._last = None

    def select(self, rows: Ints, positions: NDArray[np.integer[Any]]) -> SampleRows:
        """The rows [S] that a step samples; positions [S]: where in its sequence each token goes.

        When the rows are those of the step before, as in most decode steps, what was found out
        about them is kept.
        """
        last = self._last
        if last is None or not np.array_equal(rows, last[0]):
            last = self._last = rows.copy(), {}
        return SampleRows(self, last[0], positions.copy(), last[1])

    def warm(self, dtype: torch.dtype) -> None:
        """Draw once in every way from logits of a type, and of the one that processors make.

        A kernel that is compiled when a request needs it keeps all others waiting.
        """
        if self.kernels is None:
            return
        for count in sorted({1, min(MANY, len(self.admissions))}):
            nobody = np.zeros(count, np.int32)
            rows = self.select(nobody, nobody)
            for kind in sorted({dtype, torch.float32}, key=str):
                logits = torch.zeros(count, self.vocab_size, dtype=kind, device=self.device)
                rows.draw(logits)
                rows.draw(logits, self.kernels.floors(logits, self.columns, rows.index))
        self._last = None

    def send(self, array: NDArray[Any]) -> Tensor:
        """A host array on the device. The copy is the caller's, and nobody waits for it."""
        if self.device.type == "cpu":
            return torch.from_numpy(array.copy())
        if self._staging is not None:
            return self._staging.send(array)[0]
        # the allocator of pinned memory reuses a block only when the copy from it is over
        return torch.from_numpy(array).pin_memory().to(self.device, non_blocking=True)
