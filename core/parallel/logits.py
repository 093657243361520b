"""Logits that are cut by the vocabulary: each rank has those of its own tokens.

Whoever asks the model for logits gets whole ones. A worker whose sampler can work with parts asks
for those, and makes whole what needs to be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from core.parallel.axes import Partition
from core.parallel.groups import Communicator
from core.parallel.guards import Guard, gathered_order, reordered
from core.sampling.shards import Shard


class CutLogits(Guard):
    """Goes before the head's own class: gathers its logits, and trims them."""

    shard: Shard | None  # of this rank; None if its tokens are not one range in order
    _parts = False

    def bind(self, comm: Communicator, cuts: Sequence[Partition | None], options: Any) -> None:
        super().bind(comm, cuts, options)
        (cut,) = cuts
        assert cut is not None
        self._sizes, self._order = cut.local, gathered_order(cut)
        self.shard, done = None, 0
        for rank, spans in enumerate(cut.spans):
            if len(spans) > 1 or (spans and spans[0][0] != done):
                self.shard = None
                return
            first, done = spans[0] if spans else (done, done)
            if rank == comm.rank:
                self.shard = Shard(comm, first, done - first)

    @contextmanager
    def in_parts(self) -> Iterator[None]:
        """Within this, the head gives the logits of this rank's tokens, and padding behind them."""
        self._parts = True
        try:
            yield
        finally:
            self._parts = False

    def forward(self, x: Tensor) -> Tensor:
        part: Tensor = super().forward(x)  # type: ignore[misc]
        return part if self._parts else self.whole(part)

    def whole(self, part: Tensor) -> Tensor:
        """Every rank's part [S, chunk] -> [S, V], on every rank."""
        return reordered(self._comm.all_gather(part, self._sizes), self._order)
