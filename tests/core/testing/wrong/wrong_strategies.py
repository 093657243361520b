"""Sharding strategies with one fault each."""

from __future__ import annotations

import torch

from core.parallel import Guard
from core.registry import sharding
from plugins.sharding import linear, vocabulary
from plugins.sharding.experts import Expert
from plugins.sharding.packed import Packed


@sharding.register("bias-on-every-rank")
class BiasOnEveryRank(linear.Rowwise):
    def owner(self, role):
        return None


@sharding.register("sums-forgotten")
class SumsForgotten(linear.Rowwise):
    @property
    def guard(self):
        return None


@sharding.register("sums-twice")
class SumsTwice(linear.Rowwise):
    @property
    def guard(self):
        return AllReduceTwice


class AllReduceTwice(linear.AllReduce):
    def forward(self, *inputs):
        return self._comm.all_reduce(super().forward(*inputs))


@sharding.register("sums-in-another-order")
class SumsInAnotherOrder(linear.Rowwise):
    """Each rank adds its own part first, so their last bits differ."""

    @property
    def guard(self):
        return {"sum": OwnFirst}.get(self.options.reduce, super().guard)


class OwnFirst(Guard):
    def forward(self, *inputs):
        own = super().forward(*inputs)
        parts = self._comm.gather_all(own)
        parts = parts[self._comm.rank :] + parts[: self._comm.rank]
        return torch.stack(parts).cumsum(0)[-1] * (1 + 1e-15 * self._comm.rank)


@sharding.register("copies-kept")
class CopiesKept(linear.Colwise):
    """Gathered columns with the copies of key/value heads among them."""

    @property
    def guard(self):
        return Concatenated if self.options.gather else None


class Concatenated(linear.AllGather):
    def forward(self, x):
        ((sizes, _),) = self._gathers
        return self._comm.all_gather(super(linear.AllGather, self).forward(x), sizes)


@sharding.register("cuts-the-other-dim")
class CutsTheOtherDim(linear.Colwise):
    @property
    def dims(self):
        return {"in": self.axis}


@sharding.register("one-row-too-many")
class OneRowTooMany(vocabulary.Vocab):
    @property
    def guard(self):
        return Wide


class Wide(vocabulary.MaskedLookup):
    def bind(self, comm, cuts, options):
        super().bind(comm, cuts, options)
        self._last += comm.rank == 0


@sharding.register("padding-kept")
class PaddingKept(vocabulary.VocabHead):
    @property
    def guard(self):
        return Untrimmed if self.options.gather == "all" else super().guard


class Untrimmed(linear.AllGather):
    def bind(self, comm, cuts, options):
        super().bind(comm, cuts, options)
        self._gathers = [(sizes, [(0, sum(sizes))]) for sizes, _ in self._gathers]


@sharding.register("experts-not-added")
class ExpertsNotAdded(Expert):
    @property
    def guard(self):
        return None


@sharding.register("guard-forgotten")
class GuardForgotten(Packed):
    @property
    def guard(self):
        return None


@sharding.register("layout-that-lies")
class LayoutThatLies(linear.Colwise):
    def layout(self):
        return "R", "R"


@sharding.register("mask-of-the-first-step")
class MaskOfTheFirstStep(vocabulary.Vocab):
    @property
    def guard(self):
        return MaskKept


class MaskKept(vocabulary.MaskedLookup):
    def forward(self, ids):
        if not hasattr(self, "_mine"):
            self._mine = (ids >= self._first) & (ids < self._last)
        mine = self._mine[torch.arange(len(ids)) % len(self._mine)]
        at = torch.where(mine, ids - self._first, 0).clamp(0, len(self.weight) - 1)
        rows = super(vocabulary.MaskedLookup, self).forward(at)
        return self._comm.all_reduce(torch.where(mine.unsqueeze(-1), rows, 0))


class Summed(linear.Rowwise):
    """Sums by a guard of its own."""

    summing: type

    @property
    def guard(self):
        return self.summing if self.options.reduce == "sum" else super().guard


class SeveralSummed(linear.AllReduce):
    def forward(self, x):
        part = super(linear.AllReduce, self).forward(x)
        return part if len(part) == 1 else self._comm.all_reduce(part)


@sharding.register("one-token-unsummed")
class OneTokenUnsummed(Summed):
    summing = SeveralSummed


class BufferKept(linear.AllReduce):
    def forward(self, x):
        part = super(linear.AllReduce, self).forward(x)
        if not hasattr(self, "_buffer"):
            self._buffer = torch.zeros_like(part)
        count = min(len(part), len(self._buffer))
        self._buffer[:count] = part[:count]
        return self._comm.all_reduce(self._buffer)


@sharding.register("as-long-as-the-first-step")
class AsLongAsTheFirstStep(Summed):
    summing = BufferKept


class SummedWidely(linear.AllReduce):
    def forward(self, x):
        part = super(linear.AllReduce, self).forward(x)
        return self._comm.all_reduce(part.to(torch.promote_types(part.dtype, torch.float32)))


@sharding.register("widens-activations")
class WidensActivations(Summed):
    """Adds in float32, and leaves it at that."""

    summing = SummedWidely
