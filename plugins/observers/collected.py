"""What was seen of one request, put together on the host."""

from __future__ import annotations

import torch
from torch import Tensor


class Rows:
    """One row a position. They come in pieces, mostly in order; of two the later counts.

    A request that is computed again, after preemption or a step that failed, shows positions a
    second time.
    """

    def __init__(self) -> None:
        self._pieces: list[tuple[int, Tensor]] = []  # in order, without overlap
        self._end = 0

    def add(self, start: int, rows: Tensor) -> None:
        """Rows of the positions from `start` on."""
        stop = start + len(rows)
        if start < self._end:
            others = []
            for at, old in self._pieces:
                if at < start:
                    others.append((at, old[: start - at]))
                if at + len(old) > stop:
                    others.append((max(at, stop), old[max(stop - at, 0) :]))
            self._pieces = others
        self._pieces.append((start, rows))
        if start < self._end:
            self._pieces.sort(key=lambda piece: piece[0])
        self._end = max(self._end, stop)

    def between(self, start: int, stop: int) -> list[tuple[int, Tensor]]:
        """The pieces from `start` on, up to `stop` or to the first position that was not seen."""
        found = []
        for at, rows in self._pieces:
            rows, at = rows[max(start - at, 0) :], max(at, start)
            if at > start or start >= stop:
                break
            if len(rows):
                rows = rows[: stop - at]
                found.append((at, rows))
                start += len(rows)
        return found


def states(pieces: list[tuple[int, Tensor]], size: int, dtype: torch.dtype) -> Tensor:
    """[positions, hidden]: rows [t, hidden], end to end; may be used in autograd."""
    return torch.cat([torch.empty(0, size, dtype=dtype), *(rows for _, rows in pieces)])


def maps(pieces: list[tuple[int, Tensor]], heads: int) -> Tensor:
    """[heads, queries, keys]: rows [t, heads, keys], with zeros for the keys after a query."""
    queries = sum(len(rows) for _, rows in pieces)
    keys = pieces[-1][0] + len(pieces[-1][1]) if pieces else 0
    whole = torch.zeros(heads, queries, keys)
    first = 0
    for _, rows in pieces:
        shown = min(rows.shape[2], keys)  # of a longer piece that was cut, the rest are zeros
        whole[:, first : first + len(rows), :shown] = rows[:, :, :shown].transpose(0, 1)
        first += len(rows)
    return whole
