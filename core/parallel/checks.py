"""Checks on recipes: every parameter element written once (P8), nothing large copied (P12)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from core.parallel.problems import Problem
from core.parallel.recipe import Box, Op, Shape, text, volume, whole
from core.parallel.resolving import differs
from core.parallel.rules import Cuts, Rule, pieces


def check_shapes(
    rules: Iterable[Rule],
    planned: Mapping[str, Shape],
    built: Mapping[str, Shape],
    uncut: Mapping[str, Shape],
    rank: int,
    narrowed: str,
) -> list[Problem]:
    """P8: the model that the local config builds has exactly the shapes of the plan.

    `narrowed` says which config fields are cut by which axis.
    """
    problems = []
    seen = set()
    for rule in rules:
        for role in rule.roles:
            name = rule.param(role)
            seen.add(name)
            if name not in planned:
                continue  # a P7 was told
            if name not in built:
                problems.append(
                    Problem("P8", f"{name}: the model has it uncut, but not on rank {rank}.")
                )
            elif built[name] != planned[name]:
                sentence = differs(rule, role, built[name], planned[name], f"on rank {rank}")
                hint = ""
                if planned[name] == uncut.get(name) and narrowed:
                    hint = f" The config is narrowed: {narrowed}. Cut this weight by one of them."
                problems.append(Problem("P8", sentence + hint))
    for name in built:
        if name not in seen and name not in uncut:
            problems.append(
                Problem("P8", f"{name}: the model has it on rank {rank}, but not uncut.")
            )
    return problems


def check_cover(
    recipe: Iterable[Op],
    shapes: Mapping[str, Shape],
    rules: Mapping[str, Rule],
    cuts: Cuts,
    rank: int,
) -> list[Problem]:
    """P8: each element of each parameter is written exactly once. `rules` by parameter name."""
    by_param: dict[str, list[Op]] = {name: [] for name in shapes}
    problems = []
    for op in recipe:
        if op.dst in by_param:
            by_param[op.dst].append(op)
        else:
            problems.append(Problem("P8", f"{op.dst} is written, but it is no parameter."))
    for name, ops in by_param.items():
        boxes = sorted(op.dst_box for op in ops)
        size = shapes[name]
        outside = [box for box in boxes if not _inside(box, size)]
        for box in outside:
            problems.append(
                Problem("P8", f"{name} {size}: region {text(box)} lies outside it on rank {rank}.")
            )
        twice = _overlap(boxes)
        if outside or twice is not None:
            if twice is not None:
                part = _part_at(rules.get(name), name, twice, cuts, rank)
                problems.append(
                    Problem("P8", f"{part}: {text(twice)} is written twice on rank {rank}.")
                )
        elif sum(map(volume, boxes)) != math.prod(size):
            gap = next(gaps(size, boxes))
            part = _part_at(rules.get(name), name, gap, cuts, rank)
            problems.append(
                Problem("P8", f"{part}: {text(gap)} is written by nothing on rank {rank}.")
            )
    return problems


def _inside(box: Box, size: Shape) -> bool:
    return len(box) == len(size) and all(
        0 <= extent[0] <= extent[1] <= n for extent, n in zip(box, size, strict=True)
    )


def _overlap(boxes: Sequence[Box]) -> Box | None:
    """The common region of two boxes that have one; boxes are sorted."""
    for i, box in enumerate(boxes):
        for other in boxes[i + 1 :]:
            if box and other[0][0] >= box[0][1]:
                break
            common = tuple(
                (max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(box, other, strict=True)
            )
            if all(start < stop for start, stop in common):
                return common
    return None


def gaps(size: Shape, boxes: Iterable[Box]) -> Iterator[Box]:
    """Regions of a tensor that no box covers. Boxes may overlap and may have steps."""
    found = set(boxes)
    if whole(size) not in found:
        yield from _gaps(size, list(found), ())


def _gaps(size: Shape, boxes: list[Box], prefix: Box) -> Iterator[Box]:
    depth = len(prefix)
    if depth == len(size):
        if not boxes:
            yield prefix
        return
    if not boxes:
        yield prefix + tuple((0, n) for n in size[depth:])
        return
    n = size[depth]
    if any(len(box[depth]) > 2 for box in boxes):
        edges = list(range(n + 1))
    else:
        edges = sorted({0, n, *(min(e, n) for box in boxes for e in box[depth][:2])})
    for start, stop in pairwise(edges):
        inner = [box for box in boxes if _holds(box[depth], start, stop)]
        yield from _gaps(size, inner, (*prefix, (start, stop)))


def _holds(extent: tuple[int, ...], start: int, stop: int) -> bool:
    step = extent[2] if len(extent) > 2 else 1
    return extent[0] <= start and stop <= extent[1] and (start - extent[0]) % step == 0


def _part_at(rule: Rule | None, name: str, box: Box, cuts: Cuts, rank: int) -> str:
    """The parameter, or the part of it that should have written a region."""
    if rule is None:
        return name
    role = name.removeprefix(rule.module + ".")
    fused = rule.fused(role)
    for piece in pieces(rule, role, cuts, rank, []):
        if fused is not None and box[fused][0] < piece.offset + piece.local[fused]:
            return rule.purpose(role, piece.part)
    return name


def check_replicated(
    rules: Iterable[Rule], uncut: Mapping[str, Shape], primary: Mapping[str, str], limit: float
) -> list[Problem]:
    """P12: matrices under a strategy that cuts nothing stay below `limit` of all elements."""
    everything, copied = 0, {}
    for rule in rules:
        for role in rule.roles:
            name = rule.param(role)
            if name in primary:
                continue
            size = math.prod(uncut[name])
            everything += size
            if len(uncut[name]) > 1 and not any(part.strategy.dims for part in rule.parts):
                copied[name] = size
    share = sum(copied.values()) / max(everything, 1)
    if share <= limit:
        return []
    most = sorted(copied, key=lambda name: -copied[name])[:3]
    return [
        Problem(
            "P12",
            f"{share:.1%} of the weights are matrices copied whole to every rank (limit "
            f"{limit:.1%}), most of it {', '.join(most)}. Cut them in the plan, or raise "
            "parallel.replicate_limit.",
        )
    ]


def check_ties(rules: Mapping[str, Rule], primary: Mapping[str, str]) -> list[Problem]:
    """P11: two names of one parameter are cut alike. `rules` by parameter name."""
    problems = []
    for name, first in primary.items():
        if name not in rules or first not in rules:
            continue
        one, other = _cut_of(rules[first], first), _cut_of(rules[name], name)
        if one != other:
            problems.append(
                Problem(
                    "P11",
                    f"{name} and {first} are one tied parameter, but the plan cuts them "
                    f"differently: {_axes(other)} and {_axes(one)}. Give both the same axis.",
                )
            )
    return problems


def _cut_of(rule: Rule, name: str) -> list[list[str | None]]:
    role = name.removeprefix(rule.module + ".")
    return [[part.strategy.dims.get(dim) for dim, _ in rule.roles[role]] for part in rule.parts]


def _axes(cut: list[list[str | None]]) -> str:
    return " and ".join(
        "by " + ", ".join(f"{axis!r} on dim {i}" for i, axis in enumerate(part) if axis)
        if any(part)
        else "not at all"
        for part in cut
    )
