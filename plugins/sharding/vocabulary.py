"""The vocabulary cut by rows: the embedding, and the head that turns hidden states into logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from core.parallel import Communicator, CutLogits, Guard, Partition, Sharding
from core.parallel.guards import reordered
from plugins.sharding.linear import AllGather, not_linear


class MaskedLookup(Guard):
    """Each rank looks up the ids that it holds; the rest are zeros, and the sum is whole."""

    def bind(self, comm: Communicator, cuts: Sequence[Partition | None], options: Any) -> None:
        super().bind(comm, cuts, options)
        (cut,) = cuts
        assert cut is not None
        spans = cut.spans[comm.rank]
        self._first, self._last = spans[0] if spans else (0, 0)

    def forward(self, ids: Tensor) -> Tensor:
        mine = (ids >= self._first) & (ids < self._last)
        # foreign ids look up row 0, which every rank has: without real rows there is padding
        rows = super().forward(torch.where(mine, ids - self._first, 0))  # type: ignore[misc]
        # not rows * mine, where a foreign row with an infinity would become nan
        return self._comm.all_reduce(torch.where(mine.unsqueeze(-1), rows, 0))


class GatherToFirst(AllGather):
    """Logits of the whole vocabulary on rank 0; the others get a tensor without columns."""

    def forward(self, x: Tensor) -> Tensor:
        local = super(AllGather, self).forward(x)  # type: ignore[misc]
        ((sizes, order),) = self._gathers
        whole = self._comm.gather(local, sizes)
        return local[..., :0] if whole is None else reordered(whole, order)


class Vocab(Sharding):
    """Embedding rows follow the vocabulary axis; pad rows are 0."""

    default_axis = "vocab"

    @property
    def dims(self) -> Mapping[str, str]:
        assert self.axis is not None
        return {"out": self.axis}

    @property
    def guard(self) -> type[Guard] | None:
        return MaskedLookup

    def accepts(self, module: Any) -> str | None:
        if isinstance(module, nn.Embedding):
            return None
        return f"It cuts nn.Embedding only, and this is {type(module).__name__}."


class VocabHead(Sharding):
    """Rows of the head follow the vocabulary axis; the logits are gathered and trimmed.

    Not those of rows whose token can be drawn from parts of the vocabulary.
    """

    default_axis = "vocab"

    @dataclass(frozen=True)
    class Options:
        gather: Literal["all", "rank0", "none"] = "all"  # none: the model itself does

    @property
    def dims(self) -> Mapping[str, str]:
        assert self.axis is not None
        return {"out": self.axis}

    @property
    def guard(self) -> type[Guard] | None:
        return {"all": CutLogits, "rank0": GatherToFirst}.get(self.options.gather)

    def accepts(self, module: Any) -> str | None:
        return not_linear(module)

    def layout(self) -> tuple[str, str]:
        return "R", "R" if self.options.gather == "all" else f"S:{self.axis}"
