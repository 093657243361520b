"""Partitioners: which elements of an axis each rank owns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from core.parallel import Infeasible, Partition, Partitioner
from core.parallel.axes import Spans, total

ALIGNED_UNITS = 8  # a rank has at least so many, so the fullest has at most an eighth too much


def even_spans(size: int, ranks: int, unit: int) -> list[Spans]:
    """Contiguous runs of whole units, as many for each rank as can be; the last may be short."""
    base, extra = divmod(-(-size // unit), ranks)
    spans: list[Spans] = []
    at = 0
    for rank in range(ranks):
        stop = min(at + (base + (rank < extra)) * unit, size)
        spans.append(((at, stop),) if stop > at else ())
        at = stop
    return spans


class Even(Partitioner):
    """Whole units, unevenly if need be. With more ranks than units some ranks own nothing."""

    @dataclass(frozen=True)
    class Options:
        unit: int = 1
        align: int = 1  # cut at multiples of it, where that costs the balance little

    def cut(self, ranks: int, grain: Sequence[int]) -> tuple[Partition, ...]:
        (size,) = self.counts
        unit = math.lcm(self.options.unit, *grain)
        if unit != self.options.unit and -(-size // unit) < ranks:
            raise Infeasible(
                f"tensor={ranks} needs as many units of {unit} as ranks, and {size} holds "
                f"{-(-size // unit)}"
            )
        aligned = math.lcm(unit, self.options.align)
        if size >= ALIGNED_UNITS * aligned * ranks:
            unit = aligned
        spans = even_spans(size, ranks, unit)
        return (Partition(size, tuple(spans), tuple(map(total, spans))),)


class Gqa(Partitioner):
    """Grouped-query attention: a rank's query head i uses its key/value head i // (q / kv).

    With at least as many key/value heads as ranks, whole groups are dealt out. With more ranks,
    each group is shared out among some of them, and each of these holds a copy of its one
    key/value head.
    """

    arity = 2

    @dataclass(frozen=True)
    class Options:
        unit: int = 1  # elements of a head

    def sizes(self) -> tuple[int, ...]:
        return tuple(count * self.options.unit for count in self.counts)

    def most(self) -> int | None:
        return self.counts[0]

    def cut(self, ranks: int, grain: Sequence[int]) -> tuple[Partition, ...]:
        heads, kv_heads = self.counts
        unit = self.options.unit
        if heads % kv_heads:
            raise Infeasible(f"{heads} query heads are no multiple of {kv_heads} key/value heads")
        group = heads // kv_heads
        q_step, kv_step = (math.lcm(unit, step) // unit for step in grain)  # in heads
        if ranks <= kv_heads:
            step = math.lcm(kv_step, q_step // math.gcd(q_step, group))
            if -(-kv_heads // step) < ranks:
                raise Infeasible(
                    f"tensor={ranks} cannot cut {kv_heads} key/value heads at multiples of {step}"
                )
            kv = even_spans(kv_heads, ranks, step)
            q = [tuple((a * group, b * group) for a, b in spans) for spans in kv]
        else:
            q, kv = self._shared(ranks, group, q_step, kv_step)
        return self._partition(heads, q), self._partition(kv_heads, kv)

    def _shared(
        self, ranks: int, group: int, q_step: int, kv_step: int
    ) -> tuple[list[Spans], list[Spans]]:
        q: list[Spans] = []
        kv: list[Spans] = []
        for head, ((first, last),) in enumerate(even_spans(ranks, self.counts[1], 1)):
            sharers = last - first
            if kv_step > 1 or group % q_step or group // q_step < sharers:
                raise Infeasible(
                    f"tensor={ranks} cannot share {group} query heads of a group among {sharers} "
                    f"ranks at multiples of {q_step}"
                )
            for ((start, stop),) in even_spans(group, sharers, q_step):
                q.append(((head * group + start, head * group + stop),))
                kv.append(((head, head + 1),))
        return q, kv

    def _partition(self, heads: int, spans: Sequence[Spans]) -> Partition:
        unit = self.options.unit
        scaled = tuple(tuple((a * unit, b * unit) for a, b in rank) for rank in spans)
        return Partition(heads * unit, scaled, tuple(map(total, scaled)), unit)


class Vocab(Partitioner):
    """Equal chunks. Only behind the last real row is there padding, so one slice trims logits.

    One rank has no padding, because nothing would trim it.
    """

    @dataclass(frozen=True)
    class Options:
        unit: int = 1  # chunks are rounded up to it

    def cut(self, ranks: int, grain: Sequence[int]) -> tuple[Partition, ...]:
        (size,) = self.counts
        unit = math.lcm(self.options.unit, *grain)
        chunk = -(-size // (ranks * unit)) * unit if ranks > 1 else size
        cuts = [min(rank * chunk, size) for rank in range(ranks + 1)]
        spans: list[Spans] = [((a, b),) if b > a else () for a, b in pairwise(cuts)]
        return (Partition(size, tuple(spans), (chunk,) * ranks),)


class Experts(Partitioner):
    """Experts in order, round robin, or as an explicit map says, which may repeat an expert."""

    @dataclass(frozen=True)
    class Options:
        order: Literal["linear", "round_robin"] = "linear"
        slots: tuple[tuple[int, ...], ...] = ()  # the experts of each rank; () leaves it to order

    def most(self) -> int | None:
        return None if self.options.slots else self.counts[0]

    def cut(self, ranks: int, grain: Sequence[int]) -> tuple[Partition, ...]:
        (size,) = self.counts
        slots = self.options.slots
        if slots:
            if len(slots) != ranks:
                raise Infeasible(f"tensor={ranks}, but its slots are for {len(slots)} ranks")
            if set().union(*slots) != set(range(size)):
                raise Infeasible(f"its slots do not hold each of {size} experts")
            spans = [tuple((e, e + 1) for e in rank) for rank in slots]
        elif self.options.order == "round_robin":
            spans = [tuple((e, e + 1) for e in range(r, size, ranks)) for r in range(ranks)]
        else:
            spans = even_spans(size, ranks, 1)
        return (Partition(size, tuple(spans), tuple(map(total, spans))),)
