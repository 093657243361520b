"""Encoding: a checkpoint of plain numbers, read as if it were stored in a plan's format."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from core.errors import UserError
from core.parallel.formats import DENSE, EXPERT, PART, Dims, Format
from core.parallel.index import Index, Wanted, check_index, original
from core.parallel.problems import raise_problems
from core.parallel.recipe import Box, Range, Shape, extent_of, length, slices, whole
from core.parallel.rules import Rule, tensors
from core.parallel.sources import TORCH_TYPES, Source

if TYPE_CHECKING:
    from core.parallel.plan import ParallelPlan

BLOCK = 1 << 18  # elements that are encoded at a time
PLAIN = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
SMALL = 16  # a role with so many times fewer elements than the weight is kept for later


@dataclass(frozen=True)
class _Encoded:
    """A tensor that no file holds: a role of the format, made of one weight."""

    weight: str
    role: str
    dims: Dims


@dataclass(frozen=True)
class _Weight:
    """A weight that is encoded: [out, in] on disk."""

    shape: Shape
    purpose: str
    format: Format
    rows: int  # that are encoded at a time
    tied: str | None  # the parameter that it is, where nothing is quantized


class EncodedSource(Source):
    """Another source's tensors, with the weights of a plan's quantized modules in its format.

    Every rank encodes whole blocks of whole rows, so that a shard is a slice of what one rank has.
    """

    def __init__(self, source: Source, plan: ParallelPlan) -> None:
        """UserError if a weight that the format shall hold is not there as plain numbers."""
        super().__init__()
        assert plan.formats is not None
        self.source, self.formats = source, plan.formats
        self.concurrent = source.concurrent  # type: ignore[misc]
        self.has_values = source.has_values  # type: ignore[misc]
        self._weights, self._encoded = _read(plan)
        self._kept: dict[tuple[str, str, int], Tensor] = {}
        self._last: tuple[tuple[str, int], Mapping[str, Tensor]] | None = None
        index, expected = source.index(), plan.expected_index("F32")
        for name, weight in self._weights.items():
            if weight.tied is not None and name not in index:
                module = name.removesuffix(".weight")
                raise UserError(
                    f"{module} cannot be quantized: the config ties it to {weight.tied}, which "
                    f"stays as it is. Let the format leave {module} as it is, too."
                )
        wanted = {name: Wanted(w.shape, w.purpose, None) for name, w in self._weights.items()}
        raise_problems(check_index(wanted, {}, index, None))
        self._index = {name: found for name, found in index.items() if name not in wanted}
        self._index |= {name: expected[name] for name in self._encoded}

    @staticmethod
    def plain(plan: ParallelPlan, dtype: str) -> Index:
        """The index of a checkpoint of plain numbers that can be encoded for the plan."""
        weights, encoded = _read(plan)
        kept = {name: x for name, x in plan.expected_index(dtype).items() if name not in encoded}
        return kept | {name: (weight.shape, dtype) for name, weight in weights.items()}

    def index(self) -> Index:
        return self._index

    def read(self, name: str, box: Box) -> Tensor:
        if name not in self._encoded:
            region = self.source.read(name, box)
            self.count(region)
            return region
        made = self._encoded[name]
        box = box or whole(self._index[name][0])
        at = next((i for i, (dim, _) in enumerate(made.dims) if dim == "out"), None)
        if at is None:
            return self._block(made, 0).reshape(self._index[name][0])[slices(box)]
        rows = self._weights[made.weight].rows // made.dims[at][1]  # of this role, in a block
        parts = []
        for number, extent in _blocks(box[at], rows):
            inner = (*box[:at], extent, *box[at + 1 :])
            parts.append(self._block(made, number)[slices(inner)])
        return torch.cat(parts, at) if parts else torch.empty(extent_of(box))

    def close(self) -> None:
        self._kept.clear()
        self._last = None
        self.source.close()

    def _block(self, made: _Encoded, number: int) -> Tensor:
        """A role of the rows [number * rows, (number + 1) * rows) of its weight."""
        kept = self._kept.get((made.weight, made.role, number))
        if kept is not None:
            return kept
        last = self._last  # other threads may set it
        if last is None or last[0] != (made.weight, number):
            last = self._last = (made.weight, number), self._encode(made.weight, number)
        return last[1][made.role]

    def _encode(self, name: str, number: int) -> Mapping[str, Tensor]:
        weight = self._weights[name]
        start = number * weight.rows
        stop = min(start + weight.rows, weight.shape[0])
        plain = self.source.read(name, ((start, stop), (0, weight.shape[1])))
        self.count(plain)
        if plain.numel() and not torch.stack(plain.aminmax()).isfinite().all():
            raise UserError(
                f"checkpoint tensor {name} holds numbers that are not finite, which no scale fits. "
                "Use a checkpoint without them, or leave quantization out."
            )
        found = {}
        for role, x in self.formats.encode(plain, weight.format).items():
            dtype = TORCH_TYPES[self._index[name.removesuffix("weight") + role][1]]
            assert x.dtype == dtype or (x.is_floating_point() and dtype in PLAIN), (
                f"{type(self.formats).__name__}.encode gives {role} as {x.dtype}, not {dtype}"
            )
            found[role] = x.to(dtype)
            if x.numel() * SMALL <= plain.numel():
                self._kept[name, role, number] = found[role]
        return found


def _blocks(extent: Range, rows: int) -> Iterator[tuple[int, Range]]:
    """(number of a block of `rows`, the part of `extent` in it, counted from its start)."""
    start, stop = extent[:2]
    step = extent[2] if len(extent) > 2 else 1
    for number in range(start // rows, -(-stop // rows)):
        base = number * rows
        skipped = max(0, -(-(base - start) // step))  # elements of earlier blocks
        part = (start + skipped * step - base, min(stop - base, rows), step)
        if length(part):
            yield number, part


def _read(plan: ParallelPlan) -> tuple[dict[str, _Weight], dict[str, _Encoded]]:
    """What is encoded, and what it becomes, under the checkpoint's names."""
    weights: dict[str, _Weight] = {}
    encoded: dict[str, _Encoded] = {}
    for rule in plan.rules:
        if rule.module not in plan.built.prepared:
            continue
        if rule.spec.perm or any(dim == EXPERT for dims in rule.roles.values() for dim, _ in dims):
            raise UserError(
                f"{rule.module} cannot be quantized while it is read: its weight is a stack of "
                "experts, or turned around on disk. Let the format leave it as it is."
            )
        roles = {role: dims for role, dims in rule.roles.items() if role != "bias"}
        dense = replace(rule, format=DENSE, roles={"weight": DENSE.roles["weight"]})
        for name, shape, purpose in tensors(dense, "weight"):
            rows = _rows(rule, shape)
            name = original(name, plan.demand.rename)
            tied = plan.built.untied.get(rule.param("weight"))
            weights[name] = _Weight(shape, purpose, rule.format, rows, tied)
        for role, dims in roles.items():
            kept = tuple((dim, divisor) for dim, divisor in dims if dim != PART)
            for name, _, _ in tensors(rule, role):
                name = original(name, plan.demand.rename)
                encoded[name] = _Encoded(name.removesuffix(role) + "weight", role, kept)
    return weights, encoded


def _rows(rule: Rule, shape: Shape) -> int:
    """Rows that are encoded at a time: whole blocks of every role, all of them if one has none."""
    roles: Mapping[str, Mapping[str, int]] = {
        role: dict(dims) for role, dims in rule.roles.items() if role != "bias"
    }
    if any("out" not in dims for dims in roles.values()):
        return max(shape[0], 1)
    together = math.lcm(*(dims["out"] for dims in roles.values()))
    return together * max(1, BLOCK // max(together * shape[1], 1))
