"""The dry run: what each rank reads and holds, as rows, as a summary, as text and as JSON."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core.parallel.folding import folded, layer_of, starred, without_layer
from core.parallel.index import Index, nbytes
from core.parallel.problems import ranges
from core.parallel.recipe import Call, Fill, Op, Shape, reads, text, volume

if TYPE_CHECKING:
    from core.parallel.plan import ParallelPlan

UNEVEN = 1.25  # fullest rank over mean from which the summary warns


@dataclass(frozen=True)
class Row:
    """One region of one parameter and what fills it. `read` is the share of the source."""

    param: str
    shape: Shape
    source: str  # a tensor's name with its region, or `0.0`
    region: str
    read: float
    folded: int = 1  # how many layers this row stands for


@dataclass(frozen=True)
class Summary:
    """The footer of the dry run. Bytes are those of the checkpoint."""

    tensor: int
    checkpoint_bytes: int
    read_bytes: tuple[int, ...]  # per rank
    copied_share: float  # of all bytes read, how many some other rank reads, too
    imbalance: float  # fullest rank over mean
    collectives: int  # per forward
    sizes: tuple[int, ...]  # tensor sizes that work

    @property
    def warning(self) -> str:
        """A sentence about a bad balance, or nothing."""
        if self.imbalance <= UNEVEN:
            return ""
        return (
            f"The fullest rank reads {self.imbalance:.2f} times the mean, and every step waits for "
            "it; another tensor size may be faster."
        )


def table(plan: ParallelPlan, rank: int, index: Index, fold: bool) -> list[Row]:
    """See `ParallelPlan.table`."""
    shapes = plan.shapes(rank)
    groups: dict[str, list[Op]] = {}
    for op in plan.recipe(rank, index):
        groups.setdefault(op.dst, []).append(op)
    if not fold:
        return [_row(op, shapes[op.dst], index) for ops in groups.values() for op in ops]
    kinds: dict[object, list[str]] = {}
    for param, ops in groups.items():
        layer = layer_of(param)
        key = (without_layer(param, layer), tuple(folded(op, layer) for op in ops))
        kinds.setdefault(key, []).append(param)
    rows = []
    for params in kinds.values():
        first = params[0]
        layers = [layer for param in params if (layer := layer_of(param)) is not None]
        for op in groups[first]:
            row = _row(op, shapes[first], index)
            if len(params) > 1:
                row = dataclasses.replace(
                    row,
                    param=starred(first, layers),
                    source=starred(row.source, layers),
                    folded=len(params),
                )
            rows.append(row)
    return rows


def _row(op: Op, shape: Shape, index: Index) -> Row:
    if isinstance(op, Fill):
        return Row(op.dst, shape, str(op.value), text(op.dst_box, shape), 0.0)
    sources = []
    wanted = held = 0
    for name, box in reads(op):
        full = index[name][0]
        sources.append(name + text(box, full if len(full) == len(box) else None))
        wanted += volume(box)
        held += math.prod(full)
    source = ", ".join(sources)
    if isinstance(op, Call):
        source = f"{op.fn.rpartition(':')[2]}({source})"
    return Row(op.dst, shape, source, text(op.dst_box, shape), wanted / max(held, 1))


def summarize(plan: ParallelPlan, index: Index) -> Summary:
    """See `ParallelPlan.summary`."""
    read = tuple(plan.bytes(rank, index) for rank in range(plan.tensor))
    everything = {
        name
        for rank in range(plan.tensor)
        for op in plan.recipe(rank, index)
        for name, _ in reads(op)
    }
    once = sum(nbytes(*index[name]) for name in everything)
    return Summary(
        tensor=plan.tensor,
        checkpoint_bytes=once,
        read_bytes=read,
        copied_share=max(0.0, 1 - once / max(sum(read), 1)),
        imbalance=max(read) * plan.tensor / max(sum(read), 1),
        collectives=sum(
            rule.strategy.guard.collectives
            for rule in plan.rules
            if rule.strategy.guard is not None and plan.tensor > 1
        ),
        sizes=tuple(plan.feasible()),
    )


def describe(plan: ParallelPlan, rank: int, index: Index, fold: bool) -> str:
    """See `ParallelPlan.describe`."""
    title = (
        f"param (rank {rank} of {plan.tensor})",
        "local shape",
        "<- checkpoint tensor [region]",
        "-> region",
        "read",
    )
    lines = [title]
    for row in table(plan, rank, index, fold):
        share = f"{row.read:.1%}" if row.read else "-"
        lines.append((row.param, str(row.shape), row.source, row.region, share))
    widths = [max(len(line[i]) for line in lines) for i in range(5)]
    rows = [
        f"{p:{widths[0]}}  {s:>{widths[1]}}  {c:{widths[2]}}  {r:>{widths[3]}}  {n:>{widths[4]}}"
        for p, s, c, r, n in lines
    ]
    return "\n".join([*rows, "", *summary_lines(summarize(plan, index))])


def summary_lines(summary: Summary) -> list[str]:
    """The footer, a fact a line."""
    read = ", ".join(human(n) for n in summary.read_bytes)
    lines = [
        f"bytes read per rank        {read} of {human(summary.checkpoint_bytes)}",
        f"read by more than one rank {summary.copied_share:.1%}",
        f"fullest rank / mean        {summary.imbalance:.2f}",
        f"collectives per forward    {summary.collectives}",
        f"tensor sizes that work     {ranges(summary.sizes)}",
    ]
    return [*lines, summary.warning] if summary.warning else lines


def human(count: int) -> str:
    """Bytes with a unit: `1.50 GiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"


def as_json(plan: ParallelPlan, rank: int, index: Index, fold: bool) -> dict[str, Any]:
    """See `ParallelPlan.as_json`."""
    local = plan.local_config(rank)
    changed = {
        field.name: getattr(local, field.name)
        for field in dataclasses.fields(local)
        if getattr(local, field.name) != getattr(plan.config, field.name)
    }
    cuts = {
        name: {
            "size": cut.size,
            "spans": [list(s) for s in cut.spans[rank]],
            "local": cut.local[rank],
        }
        for name, cut in plan.cuts.items()
    }
    rows = [
        {
            "param": row.param,
            "shape": list(row.shape),
            "source": row.source,
            "region": row.region,
            "read": round(row.read, 6),
        }
        for row in table(plan, rank, index, fold)
    ]
    summary = dataclasses.asdict(summarize(plan, index))
    return {"rank": rank, "local_config": changed, "axes": cuts, "rows": rows, "summary": summary}
