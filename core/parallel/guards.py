"""Guards: collectives around a few forwards, put there by swapping the module's class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from core.fusing import Fusing
from core.parallel.axes import Partition
from core.parallel.groups import Communicator

if TYPE_CHECKING:
    from core.parallel.plan import ParallelPlan


class Guard:
    """A forward mixin: put before a module's class, so that `super().forward` is the matmul.

    >>> class AllReduce(Guard):
    ...     def forward(self, x):
    ...         return self._comm.all_reduce(super().forward(x))

    A guard does not branch on values, does not wait for the device, and takes the layout of its
    input from the plan, never from a shape.
    """

    collectives: ClassVar[int] = 1  # per forward, for the dry run
    _comm: Communicator
    _fusing: Fusing = Fusing()  # that of `core.layers.Linear`: whether values may wait
    _shared: dict[str, Any]  # one for all guards of a rank's model: what one sees and others need

    def bind(self, comm: Communicator, cuts: Sequence[Partition | None], options: Any) -> None:
        """Called once, after the swap: keep what the forward needs.

        `cuts` has the partition of each part (None: not cut), `options` are the strategy's.
        """
        self._comm = comm


def guard(model: nn.Module, plan: ParallelPlan, rank: int, comm: Communicator | None) -> nn.Module:
    """Put the plan's guards on a rank's model, in place; does nothing at tensor size 1.

    isinstance, parameter names and the module tree stay as they are. Give the model its weights
    and its quantized layers first.
    """
    if plan.tensor == 1:
        return model
    assert comm is not None
    assert (comm.rank, comm.size) == (rank, plan.tensor)
    shared: dict[str, Any] = {}
    for rule in plan.rules:
        mixin = rule.strategy.guard
        if mixin is None:
            continue
        module = model.get_submodule(rule.module)
        module.__class__ = guarded(mixin, type(module))
        cuts = [
            next((plan.cuts[axis] for axis in part.strategy.dims.values()), None)
            for part in rule.parts
        ]
        assert isinstance(module, Guard)
        module._shared = shared
        module.bind(comm, cuts, rule.parts[0].strategy.options)
    return model


_guarded: dict[tuple[type[Guard], type[nn.Module]], type[nn.Module]] = {}


def guarded(mixin: type[Guard], kind: type[nn.Module]) -> type[nn.Module]:
    """The class with the guard's forward around that of `kind`; one for each pair."""
    if (mixin, kind) not in _guarded:
        name = f"{mixin.__name__}{kind.__name__}"
        _guarded[mixin, kind] = type(name, (mixin, kind), {"__module__": kind.__module__})
    return _guarded[mixin, kind]


def gathered_order(cut: Partition) -> list[tuple[int, int]]:
    """Where the elements of an axis lie, in order, in all ranks' shards end to end.

    Copies and padding are left out; neighbours are one range, so an axis without copies is one.
    """
    shards: list[tuple[int, int, int]] = []  # start, stop on the axis; start among the shards
    base = 0
    for spans, allocated in zip(cut.spans, cut.local, strict=True):
        at = base
        for start, stop in spans:
            shards.append((start, stop, at))
            at += stop - start
        base += allocated
    merged: list[tuple[int, int]] = []
    done = 0
    for start, stop, at in sorted(shards):
        if stop <= done:
            continue
        fresh = at + max(done - start, 0), at + stop - start
        if merged and merged[-1][1] == fresh[0]:
            merged[-1] = (merged[-1][0], fresh[1])
        else:
            merged.append(fresh)
        done = stop
    return merged


def reordered(x: Tensor, order: Sequence[tuple[int, int]]) -> Tensor:
    """The ranges of the last dim, end to end; a view when there is one."""
    parts = [x[..., start:stop] for start, stop in order]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)
