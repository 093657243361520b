"""Rules: a plan entry resolved for one module, and where its parts lie, on disk and on a rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from core.parallel.axes import Partition, Span, stored, total
from core.parallel.formats import EXPERT, PART, Dims, Format
from core.parallel.problems import Problem, fold_numbers
from core.parallel.recipe import Shape
from core.parallel.strategy import Sharding
from core.parallel.syntax import RuleSpec

T = TypeVar("T")
Cuts = Mapping[str, Partition]  # by axis name
Located = tuple[tuple[Span, ...], int]  # what is read on a stored dim, and what is allocated


@dataclass(frozen=True)
class Part:
    """One checkpoint module that becomes (a slice of) one module of the model."""

    source: str  # its full name; may contain {e}, the index on the expert axis
    strategy: Sharding
    sizes: Mapping[str, int]  # logical dim -> its size, uncut

    @property
    def label(self) -> str:
        return self.source.rpartition(".")[2]


@dataclass(frozen=True)
class Rule:
    """A plan entry for one module. More than one part: laid end to end on the dim `spec.dim`."""

    module: str
    spec: RuleSpec
    strategy: Sharding
    parts: tuple[Part, ...]
    format: Format
    roles: Mapping[str, Dims]  # own parameters -> their stored dims

    @property
    def disk(self) -> str:
        """The one checkpoint module of parts that are fused or interleaved on disk."""
        parent = self.module.rpartition(".")[0]
        return f"{parent}.{self.spec.source}" if parent else str(self.spec.source)

    def param(self, role: str) -> str:
        return f"{self.module}.{role}"

    def purpose(self, role: str, part: Part) -> str:
        """`the k_proj part of ...qkv_proj.weight`, or just the parameter when it has one part."""
        param = self.param(role)
        return f"the {part.label} part of {param}" if len(self.parts) > 1 else param

    def fused(self, role: str) -> int | None:
        """The stored dim on which parts follow each other; None when the role has no such dim."""
        for i, (dim, _) in enumerate(self.roles[role]):
            if dim in (self.spec.dim, PART):
                return i
        return None


@dataclass(frozen=True)
class Piece:
    """One part of one parameter, uncut or on one rank, in storage indices."""

    part: Part
    dims: tuple[Located | None, ...]  # None for the dim `part`, which has one slot
    offset: int  # where the piece starts on the fused dim of the parameter

    @property
    def local(self) -> Shape:
        return tuple(1 if located is None else located[1] for located in self.dims)


def pieces(
    rule: Rule, role: str, cuts: Cuts | None, rank: int, problems: list[Problem]
) -> list[Piece]:
    """The parts of a parameter on `rank`, or uncut when there are no cuts. Appends P7."""
    fused = rule.fused(role)
    result: list[Piece] = []
    offset = 0
    parts = rule.parts if fused is not None else rule.parts[:1]
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        located = tuple(
            None if dim == PART else _locate(rule, role, part, i, cuts, rank, last, problems)
            for i, (dim, _) in enumerate(rule.roles[role])
        )
        piece = Piece(part, located, offset)
        result.append(piece)
        offset += piece.local[fused] if fused is not None else 0
    return result


def _locate(
    rule: Rule,
    role: str,
    part: Part,
    number: int,
    cuts: Cuts | None,
    rank: int,
    last: bool,
    problems: list[Problem],
) -> Located:
    dim, divisor = rule.roles[role][number]
    axis = part.strategy.dims.get(dim)
    size = part.sizes[dim]
    spans: tuple[Span, ...] = ((0, size),)
    allocated = size
    if axis is not None and cuts is not None:
        spans, allocated = cuts[axis].spans[rank], cuts[axis].local[rank]
    group = f"{fold_numbers(rule.param(role))} {part.label} {dim}"
    purpose = rule.purpose(role, part)
    storage = []
    for start, stop in spans:
        if stop <= start:
            continue
        found = stored((start, stop), size, divisor)
        if found is None:
            problems.append(
                Problem(
                    "P7",
                    f"{purpose}: rank {rank} of axis {axis!r} is "
                    f"[{start}, {stop}), a cut inside a storage block of {divisor}. "
                    "Choose another tensor size, or replicate this weight.",
                    group,
                )
            )
            found = (start // divisor, -(-stop // divisor))
        storage.append(found)
    if number == rule.fused(role) and not last and allocated % divisor:
        where = f"on rank {rank}" if cuts is not None else "uncut"
        problems.append(
            Problem(
                "P7",
                f"{purpose}: {allocated} {where} is not a multiple of the "
                f"storage block of {divisor}, so the next part would start inside its block. "
                "Choose another tensor size, or keep the parts in modules of their own.",
                group + " end",
            )
        )
    return tuple(storage), max(total(storage), -(-allocated // divisor))


def shape(rule: Rule, role: str, placed: list[Piece]) -> Shape:
    """The stored shape of a parameter, from its pieces."""
    fused = rule.fused(role)
    lengths = list(placed[0].local)
    if fused is not None:
        lengths[fused] = sum(piece.local[fused] for piece in placed)
    return tuple(lengths)


def tensors(rule: Rule, role: str) -> list[tuple[str, Shape, str]]:
    """The checkpoint tensors behind a parameter: name, full shape, and what each is for.

    Shape () stands for one element, stored with or without a dim.
    """
    uncut = pieces(rule, role, None, 0, [])
    fused = rule.fused(role)
    if rule.spec.on_disk != "split":
        dims = _disk_dims(rule, role, uncut[0])
        if fused is not None and rule.roles[role][fused][0] != PART:
            dims[rule.roles[role][fused][0]] = sum(piece.local[fused] for piece in uncut)
        return [(f"{rule.disk}.{role}", _on_disk(rule, dims), rule.param(role))]
    result = []
    for piece in uncut if fused is not None else _every_part(rule, role):
        dims = _disk_dims(rule, role, piece)
        source = piece.part.source
        purpose = rule.purpose(role, piece.part)
        if "{e}" not in source:
            result.append((f"{source}.{role}", _on_disk(rule, dims), purpose))
            continue
        count = dims.pop(EXPERT, 0)
        names = (source.replace("{e}", str(expert)) for expert in range(count))
        result += [(f"{name}.{role}", _on_disk(rule, dims), purpose) for name in names]
    return result


def _disk_dims(rule: Rule, role: str, piece: Piece) -> dict[str, int]:
    """Stored sizes by logical dim, without the dim `part`, which no checkpoint tensor has."""
    return {
        dim: located[1]
        for (dim, _), located in zip(rule.roles[role], piece.dims, strict=True)
        if located is not None
    }


def _every_part(rule: Rule, role: str) -> list[Piece]:
    """Pieces for a role that the parts of a packed module share: each brings its own tensor."""
    ignored: list[Problem] = []
    dims = rule.roles[role]
    return [
        Piece(
            part,
            tuple(_locate(rule, role, part, i, None, 0, True, ignored) for i in range(len(dims))),
            0,
        )
        for part in rule.parts
    ]


def _on_disk(rule: Rule, dims: Mapping[str, int]) -> Shape:
    return permuted(tuple(dims.values()), rule.spec.perm)


def permuted(values: tuple[T, ...], perm: tuple[int, ...] | None) -> tuple[T, ...]:
    """What belongs to the dims of a parameter, in the order of the dims on disk.

    Dim i of the parameter is dim `perm[i]` on disk. Tensors of fewer dims (biases) stay.
    """
    if perm is None or len(perm) != len(values):
        return values
    disk = list(values)
    for i, d in enumerate(perm):
        disk[d] = values[i]
    return tuple(disk)
