"""Linear layers cut by output (colwise) or by input (rowwise), and the collectives behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from core.parallel import Communicator, Guard, Partition, Sharding
from core.parallel.guards import gathered_order, reordered


def not_linear(module: Any) -> str | None:
    """A sentence that refuses everything but linear layers."""
    if isinstance(module, nn.Linear):
        return None
    return (
        f"It cuts nn.Linear only, and this is {type(module).__name__}: a layer that mixes its "
        "cut dim would need a collective of its own."
    )


class AllReduce(Guard):
    """Partial sums become the sum on every rank, in a captured step perhaps with what follows."""

    def forward(self, *inputs: Tensor) -> Tensor:
        part = super().forward(*inputs)  # type: ignore[misc]
        return self._comm.sum_later(part) if self._fusing.on else self._comm.all_reduce(part)


class ReduceScatter(Guard):
    """Partial sums become the sum of this rank's tokens."""

    def forward(self, x: Tensor) -> Tensor:
        return self._comm.reduce_scatter(super().forward(x))  # type: ignore[misc]


class AllGather(Guard):
    """Cut outputs become whole on every rank without padding, each part of a packed layer alone."""

    def bind(self, comm: Communicator, cuts: Sequence[Partition | None], options: Any) -> None:
        super().bind(comm, cuts, options)
        assert all(cut is not None for cut in cuts), cuts
        self._gathers = [(cut.local, gathered_order(cut)) for cut in cuts if cut is not None]
        self._own = [sizes[comm.rank] for sizes, _ in self._gathers]

    def forward(self, x: Tensor) -> Tensor:
        pieces = super().forward(x).split(self._own, -1)  # type: ignore[misc]
        whole = [
            reordered(self._comm.all_gather(piece, sizes), order)
            for piece, (sizes, order) in zip(pieces, self._gathers, strict=True)
        ]
        return whole[0] if len(whole) == 1 else torch.cat(whole, -1)


class Colwise(Sharding):
    """`out` follows the axis: each rank computes its own outputs."""

    @dataclass(frozen=True)
    class Options:
        gather: bool = False  # make the output whole on every rank

    @property
    def dims(self) -> Mapping[str, str]:
        assert self.axis is not None
        return {"out": self.axis}

    @property
    def guard(self) -> type[Guard] | None:
        return AllGather if self.options.gather else None

    def accepts(self, module: Any) -> str | None:
        return not_linear(module)

    def layout(self) -> tuple[str, str]:
        return "R", "R" if self.options.gather else f"S:{self.axis}"


class Rowwise(Sharding):
    """`in` follows the axis: outputs are partial sums. Rank 0 alone holds the bias."""

    @dataclass(frozen=True)
    class Options:
        reduce: Literal["sum", "scatter", "defer", "none"] = "sum"
        # scatter: each rank gets the sum of its tokens; defer: a later module completes the sum;
        # none: the model itself does

    @property
    def dims(self) -> Mapping[str, str]:
        assert self.axis is not None
        return {"in": self.axis}

    @property
    def guard(self) -> type[Guard] | None:
        return {"sum": AllReduce, "scatter": ReduceScatter}.get(self.options.reduce)

    def owner(self, role: str) -> int | None:
        return 0 if role == "bias" else None

    def accepts(self, module: Any) -> str | None:
        return not_linear(module)

    def layout(self) -> tuple[str, str]:
        return f"S:{self.axis}", {"sum": "R", "scatter": "T"}.get(self.options.reduce, "P")
