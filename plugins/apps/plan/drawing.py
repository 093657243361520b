"""Drawing: tensors and fused parameters as shapes in pixels, in the exact shares of the recipe."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from core.parallel.problems import ranges
from core.parallel.recipe import Box
from plugins.apps.plan.fusion import Fusion, Landing
from plugins.apps.plan.regions import Ranks, TensorMap, regions

TRUE_SCALE = 16  # up to this ratio of the longest side to the shortest, one scale fits all
VECTOR = 0.06  # the width of a vector, as a share of the longest side that is drawn
LETTER = 6.2  # width of a letter of the small labels, for what has room for one
PILE = 3.0  # between the tensors of one step
GAP = 6.0  # between ranks, and between tensors, of a fused parameter


@dataclass(frozen=True)
class Scale:
    """Elements on a side of a tensor -> pixels."""

    power: float
    longest: int  # elements
    pixels: float  # of the longest side

    @classmethod
    def fitting(cls, maps: Iterable[TensorMap], pixels: float) -> Scale:
        """In proportion where that is legible, by the cube root elsewhere."""
        sides = [side for tensor in maps for side in tensor.flat if side > 1] or [1]
        power = 1.0 if max(sides) <= TRUE_SCALE * min(sides) else 1 / 3
        return cls(power, max(sides), pixels)

    def __call__(self, side: int) -> float:
        if side <= 1:
            return VECTOR * self.pixels
        return self.pixels * float((side / self.longest) ** self.power)

    @property
    def words(self) -> str:
        if self.power == 1:
            return "All sides are drawn to one scale; a vector is a strip."
        return (
            "A side of a rectangle grows with the cube root of its length, so that all fit on one "
            "page; within a rectangle, areas are exact. A vector is a strip."
        )


@dataclass(frozen=True)
class Tile:
    """A region on the page."""

    x: float
    y: float
    width: float
    height: float
    ranks: Ranks
    label: str  # what there is room for
    text: str  # all of it

    @property
    def broad(self) -> bool:
        """Whether a seam around it leaves enough to see."""
        return min(self.width, self.height) >= 5


@dataclass(frozen=True)
class Picture:
    """A tensor on the page."""

    tensor: TensorMap
    width: float
    height: float
    tiles: tuple[Tile, ...]


def picture(tensor: TensorMap, scale: Scale, ranks: int) -> Picture:
    """A tensor's regions, each with its exact share of the rectangle."""
    rows, columns = tensor.flat
    width, height = scale(columns), scale(rows)
    tiles = []
    for region in tensor.regions:
        (top, bottom), (left, right) = region.rows, region.columns
        across, down = width * (right - left) / columns, height * (bottom - top) / rows
        share = region.elements / (rows * columns)
        portion = "all" if share == 1 else f"{share:.3g}"
        who = readers(region.ranks, ranks)
        where = f"rows {top} to {bottom - 1}"
        if len(tensor.shape) > 1:
            where += f", columns {left} to {right - 1}"
        short = "every" if len(region.ranks) == ranks > 1 else ranges(region.ranks)
        fits = across >= LETTER * len(short) + 4 and down >= 12
        tiles.append(
            Tile(
                width * left / columns,
                height * top / rows,
                across,
                down,
                region.ranks,
                short if fits else "",
                f"{who}: {where}, {portion} of {tensor.name}",
            )
        )
    return Picture(tensor, width, height, tuple(tiles))


def readers(ranks: Ranks, count: int) -> str:
    """`rank 3`, `ranks 0 to 2`, `every rank`."""
    if len(ranks) == count > 1:
        return "every rank"
    return f"rank{'s' * (len(ranks) > 1)} {ranges(ranks)}"


@dataclass(frozen=True)
class Bar:
    """A tensor, or a rank's parameter, standing upright along the fused dim."""

    y: float
    height: float
    label: str


@dataclass(frozen=True)
class Ribbon:
    """What flows from a tensor, between two heights at the left, to a rank, at the right."""

    left: tuple[float, float]
    right: tuple[float, float]
    rank: int
    source: int | None  # None: a constant, from nowhere
    label: str
    text: str


@dataclass(frozen=True)
class Weave:
    """A fused parameter on the page: tensors at the left, ranks at the right."""

    fusion: Fusion
    height: float
    sources: tuple[Bar, ...]
    read: tuple[tuple[float, float, Ranks], ...]  # of the sources: y, height, and who reads it
    ranks: tuple[Bar, ...]
    ribbons: tuple[Ribbon, ...]


def weave(fusion: Fusion, height: float) -> Weave:
    """Both sides at one scale: an element is equally high wherever it is drawn."""
    sizes = [fusion.size(rank) for rank in range(len(fusion.shapes))]
    gaps = GAP * (max(len(sizes), len(fusion.sources)) - 1)
    pixel = (height - gaps) / max(sum(sizes), sum(s.size for s in fusion.sources), 1)
    names = _short([source.name for source in fusion.sources])
    left = _stack([s.size for s in fusion.sources], names, pixel, height)
    right = _stack(sizes, [f"rank {rank}" for rank in range(len(sizes))], pixel, height)
    ribbons = tuple(_ribbon(landing, left, right, names, pixel) for landing in fusion.landings)
    return Weave(fusion, height, left, _read(fusion, left, pixel), right, ribbons)


def _read(
    fusion: Fusion, bars: Sequence[Bar], pixel: float
) -> tuple[tuple[float, float, Ranks], ...]:
    """Who reads which stretch of the sources."""
    found = []
    for number, (source, bar) in enumerate(zip(fusion.sources, bars, strict=True)):
        boxes: list[list[Box]] = [[] for _ in fusion.shapes]
        for landing in fusion.landings:
            if landing.source == number:
                boxes[landing.rank].append(((*landing.source_span, landing.stride),))
        for region in regions((source.size,), boxes):
            top, bottom = region.rows
            found.append((bar.y + top * pixel, (bottom - top) * pixel, region.ranks))
    return tuple(found)


def _stack(
    sizes: Sequence[int], labels: Sequence[str], pixel: float, height: float
) -> tuple[Bar, ...]:
    """Bars one below the other, spread over all of the height."""
    spare = height - pixel * sum(sizes)
    gap = spare / (len(sizes) - 1) if len(sizes) > 1 else 0.0
    at = 0.0 if len(sizes) > 1 else spare / 2
    bars = []
    for size, label in zip(sizes, labels, strict=True):
        bars.append(Bar(at, size * pixel, label))
        at += size * pixel + gap
    return tuple(bars)


def _ribbon(
    landing: Landing, left: Sequence[Bar], right: Sequence[Bar], names: list[str], pixel: float
) -> Ribbon:
    below = right[landing.rank].y
    there = below + landing.span[0] * pixel, below + landing.span[1] * pixel
    name = names[landing.source] if landing.source is not None else "0"
    here = there
    if landing.source is not None:
        top = left[landing.source].y
        here = top + landing.source_span[0] * pixel, top + landing.source_span[1] * pixel
    text = landing.text
    label = name if there[1] - there[0] >= 12 else ""
    return Ribbon(here, there, landing.rank, landing.source, label, text)


def _short(names: Sequence[str]) -> list[str]:
    """What tells names apart: without their common beginning and end, in whole components."""
    parts = [name.split(".") for name in names]
    if len(parts) == 1:
        return [".".join(parts[0][-2:])]
    while all(len(p) > 1 for p in parts) and len({p[-1] for p in parts}) == 1:
        parts = [p[:-1] for p in parts]
    while all(len(p) > 1 for p in parts) and len({p[0] for p in parts}) == 1:
        parts = [p[1:] for p in parts]
    return [".".join(p) for p in parts]
