"""The compiler: rules and partitions in, the recipe of one rank out. Pure, integers only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product

from core.parallel.formats import EXPERT, PART
from core.parallel.problems import Problem, fold_numbers
from core.parallel.recipe import Box, Copy, Fill, Op, Range, Recipe, Shape
from core.parallel.rules import Cuts, Piece, Rule, permuted, pieces, shape

Choice = tuple[Range | None, Range]  # (where on disk, where in the parameter); None: not on disk


def compile_rule(
    rule: Rule, cuts: Cuts, rank: int, problems: list[Problem]
) -> tuple[Recipe, dict[str, Shape]]:
    """What fills a module's parameters on `rank`, and the shapes that the plan gives them.

    Appends P7.
    """
    recipe: Recipe = []
    shapes: dict[str, Shape] = {}
    for role in rule.roles:
        found: list[Problem] = []
        placed = pieces(rule, role, cuts, rank, found)
        uncut = pieces(rule, role, None, 0, found)
        if found:
            problems += found
            continue
        shapes[rule.param(role)] = shape(rule, role, placed)
        for number, piece in enumerate(placed):
            recipe += _fill(rule, role, number, piece, uncut, rank, problems)
    return recipe, shapes


def _fill(
    rule: Rule,
    role: str,
    number: int,
    piece: Piece,
    uncut: list[Piece],
    rank: int,
    problems: list[Problem],
) -> Recipe:
    """The operations of one piece: its copies, and zeros for padding or another rank's part."""
    param, fused = rule.param(role), rule.fused(role)
    starts = [piece.offset if i == fused else 0 for i in range(len(piece.dims))]
    everything: Box = tuple((at, at + size) for at, size in zip(starts, piece.local, strict=True))
    if 0 in piece.local:
        return []
    owner = piece.part.strategy.owner(role)
    if owner is not None and owner != rank:
        return [Fill(param, everything)]

    each = "{e}" in piece.part.source  # one checkpoint tensor per expert
    choices: list[list[Choice]] = []
    for i, ((dim, divisor), located) in enumerate(zip(rule.roles[role], piece.dims, strict=True)):
        at = starts[i]
        if located is None:
            choices.append([(None, (at, at + 1))])
            continue
        pairs: list[Choice] = []
        for start, stop in located[0]:
            single = dim == EXPERT and each
            for a, b in [(e, e + 1) for e in range(start, stop)] if single else [(start, stop)]:
                disk: Range = (a, b)
                if i == fused and rule.spec.on_disk == "fused":
                    disk = (a + uncut[number].offset, b + uncut[number].offset)
                elif i == fused and rule.spec.on_disk == "interleaved":
                    disk = _interleaved(rule, role, number, divisor, (a, b), problems)
                pairs.append((disk, (at, at + b - a)))
                at += b - a
        choices.append(pairs)

    ops: list[Op] = [_copy(rule, role, piece, combination) for combination in product(*choices)]
    for i, located in enumerate(piece.dims):
        data = sum(stop - start for start, stop in located[0]) if located is not None else 1
        if data < piece.local[i]:
            padding = list(everything)
            padding[i] = (starts[i] + data, starts[i] + piece.local[i])
            ops.append(Fill(param, tuple(padding)))
            everything = (*everything[:i], (starts[i], starts[i] + data), *everything[i + 1 :])
    return ops


def _interleaved(
    rule: Rule, role: str, number: int, divisor: int, span: tuple[int, int], problems: list[Problem]
) -> Range:
    """Rows `number, number + n, ...` of the one tensor in which n parts alternate."""
    ways = rule.spec.ways
    if divisor > 1:
        param = rule.param(role)
        problems.append(
            Problem(
                "P7",
                f"{param}: parts that alternate on disk share every storage block of {divisor}. "
                "Only formats without blocks on this dim can be interleaved.",
                fold_numbers(param),
            )
        )
    start, stop = span
    return (number + ways * start, number + ways * (stop - 1) + 1, ways)


def _copy(rule: Rule, role: str, piece: Piece, combination: tuple[Choice, ...]) -> Copy:
    each = "{e}" in piece.part.source
    name = piece.part.source if rule.spec.on_disk == "split" else rule.disk
    boxes: list[Range] = []
    for (dim, _), (disk, _at) in zip(rule.roles[role], combination, strict=True):
        if dim == EXPERT and each:
            assert disk is not None
            name = name.replace("{e}", str(disk[0]))
        elif dim != PART:
            assert disk is not None
            boxes.append(disk)
    dst_box = tuple(at for _, at in combination)
    perm = rule.spec.perm if rule.spec.perm and len(rule.spec.perm) == len(boxes) else None
    return Copy(f"{name}.{role}", permuted(tuple(boxes), perm), rule.param(role), dst_box, perm)


def compile_rank(
    rules: Iterable[Rule],
    cuts: Cuts,
    rank: int,
    primary: Mapping[str, str],
    problems: list[Problem],
) -> tuple[Recipe, dict[str, Shape]]:
    """The recipe of a rank and the shapes that the plan gives its parameters.

    `primary` maps a tied parameter to the one under whose name it is filled.
    """
    recipe: Recipe = []
    shapes: dict[str, Shape] = {}
    for rule in rules:
        ops, local = compile_rule(rule, cuts, rank, problems)
        recipe += [op for op in ops if op.dst not in primary]
        shapes.update(local)
    return recipe, shapes
