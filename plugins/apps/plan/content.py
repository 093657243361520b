"""What a page or picture of a plan shows: its facts, and its shapes in pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.parallel.problems import ranges
from core.parallel.recipe import text
from plugins.apps.plan.colours import Colour, colours
from plugins.apps.plan.drawing import PILE, Picture, Scale, Weave, picture, readers, weave
from plugins.apps.plan.flow import Flow, flow
from plugins.apps.plan.fusion import Fusion, fusions
from plugins.apps.plan.regions import Ranks, TensorMap, tensor_maps
from plugins.apps.plan.strip import Strip, strip

if TYPE_CHECKING:
    import torch

    from core.parallel import Index, ParallelPlan
    from core.parallel.report import Row, Summary
    from plugins.apps.plan.rehearsal import Forward

LONGEST = 252.0  # pixels of the longest side of a tensor
IN_FLOW = 160.0  # the same, in the picture of a forward pass
FUSED = (168.0, 560.0, 34.0)  # height of a fused parameter: least, most, and for each rank


@dataclass(frozen=True)
class Content:
    """What there is to show of one plan."""

    name: str  # of the model
    tensor: int
    facts: Mapping[str, str]  # the footer of the text output
    summary: Summary
    cache: tuple[int, ...]  # bytes of a token's keys and values, by rank
    maps: Sequence[TensorMap]
    fusions: Sequence[Fusion]
    flow: Flow
    rows: Sequence[Sequence[Row]]  # by rank

    @property
    def title(self) -> str:
        return f"{self.name} on {self.tensor} rank{'s' * (self.tensor > 1)}"

    @property
    def colours(self) -> list[Colour]:
        return colours(self.tensor)

    @property
    def shared(self) -> list[Ranks]:
        """Sets of several ranks, not all of them, that read the same regions."""
        found = {region.ranks for tensor in self.maps for region in tensor.regions}
        return sorted(ranks for ranks in found if 1 < len(ranks) < self.tensor)

    @property
    def legend(self) -> list[tuple[str, str]]:
        """What a colour means, and the class that paints it."""
        found = [(f"rank {rank}", f"r{rank}") for rank in range(self.tensor)]
        found += [(f"ranks {ranges(ranks)}", self.paint(ranks)) for ranks in self.shared]
        return found + [("every rank", "every")] * (self.tensor > 1)

    @property
    def strip(self) -> Strip:
        """The forward pass as one picture."""
        return strip(self)

    @property
    def scale(self) -> Scale:
        return Scale.fitting(self.maps, LONGEST)

    @property
    def pictures(self) -> list[Picture]:
        """Every tensor, drawn."""
        return [picture(tensor, self.scale, self.tensor) for tensor in self.maps]

    @property
    def weaves(self) -> list[Weave]:
        """Every fused parameter, drawn."""
        least, most, each = FUSED
        height = min(max(least, each * self.tensor), most)
        return [weave(fusion, height) for fusion in self.fusions]

    @property
    def flow_height(self) -> float:
        """Pixels of the highest pile of tensors in the picture of a forward pass."""
        piles = [self.small(s.tensors) for stage in self.flow.stages for s in stage.steps]
        return max((sum(p.height + PILE for p in pile) for pile in piles), default=0.0)

    def small(self, tensors: Sequence[TensorMap]) -> list[Picture]:
        """Tensors, drawn for the forward pass."""
        scale = Scale.fitting(self.maps, IN_FLOW)
        return [picture(tensor, scale, self.tensor) for tensor in tensors]

    def cut(self, tensor: TensorMap) -> str:
        """How a tensor is divided, in a sentence without its end."""
        return cut(tensor, self.tensor)

    def regions(self, tensor: TensorMap) -> list[tuple[str, str]]:
        """Who reads what: `rank 0`, `[0:512, 0:4096]`."""
        shape = tensor.flat if len(tensor.shape) > 1 else tensor.flat[:1]
        return [
            (readers(r.ranks, self.tensor), text((r.rows, r.columns)[: len(shape)], shape))
            for r in tensor.regions
        ]

    def paint(self, ranks: Ranks) -> str:
        """The class that colours what these ranks read."""
        if len(ranks) == 1:
            return f"r{ranks[0]}"
        if len(ranks) == self.tensor:
            return "every"
        return "s" + "-".join(map(str, ranks))

    @property
    def sent(self) -> int | None:
        """Bytes of all messages of a token, the logits' among them; None where not known."""
        total = 0
        for stage, _, send in self.flow.messages():
            if send.nbytes is None:
                return None
            total += send.nbytes * stage.count
        return total


def content(
    name: str,
    plan: ParallelPlan,
    index: Index,
    dtype: torch.dtype,
    *,
    facts: Mapping[str, str],
    cache: tuple[int, ...],
    fold: bool = True,
    forward: Forward | None = None,
) -> Content:
    """Collect all of it. `dtype`: of the activations; `forward`: see `flow`."""
    maps = tensor_maps(plan, index, fold)
    return Content(
        name=name,
        tensor=plan.tensor,
        facts=facts,
        summary=plan.summary(index),
        cache=cache,
        maps=maps,
        fusions=fusions(plan, index, fold),
        flow=flow(plan, index, maps, dtype, fold=fold, forward=forward),
        rows=[plan.table(rank, index, fold) for rank in range(plan.tensor)],
    )


def cut(tensor: TensorMap, ranks: int) -> str:
    """How a tensor is divided among so many ranks."""
    if not tensor.regions:
        return "read by no rank"
    rows, columns = tensor.flat
    if all(len(r.ranks) == ranks and r.elements == rows * columns for r in tensor.regions):
        return "whole on every rank" if ranks > 1 else "whole"
    by_rows = any(r.rows != (0, rows) for r in tensor.regions)
    by_columns = any(r.columns != (0, columns) for r in tensor.regions)
    if by_rows and by_columns:
        return "cut by rows and columns"
    sizes = [0] * ranks
    for region in tensor.regions:
        span = region.rows if by_rows else region.columns
        for rank in region.ranks:
            sizes[rank] += span[1] - span[0]
    word = "rows" if by_rows else "columns"
    if len(tensor.shape) < 2:
        word = "entries"
    listed = f"{sizes[0]:,} each" if len(set(sizes)) == 1 else ", ".join(map(str, sizes))
    if len(set(sizes)) > 1 and ranks > 8:
        listed = f"{min(sizes):,} to {max(sizes):,}"
    copies = " (with copies)" if sum(sizes) > (rows if by_rows else columns) else ""
    return f"cut by {word}: {listed}{copies}"
