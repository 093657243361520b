"""Demand: which checkpoint tensors a plan wants, and which of them must equal one another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from core.parallel.index import Index, Twin, Wanted, original
from core.parallel.problems import Problem
from core.parallel.recipe import Box, Recipe, Shape, chunks, reads, renamed_reads, whole
from core.parallel.rules import Rule, tensors

if TYPE_CHECKING:
    from core.parallel.sources import Source

COMPARED = 1 << 24  # elements of two tensors that are compared at a time


class Demand:
    """What all ranks together want of a checkpoint, under the checkpoint's own names."""

    def __init__(
        self,
        rules: Sequence[Rule],
        ties: Mapping[str, str],
        fixed: Mapping[str, str],
        rename: Mapping[str, str],
    ) -> None:
        """`ties`: second name of a parameter -> first; `fixed`: parameter -> type it must have."""
        self.wanted: dict[str, Wanted] = {}
        self.twins: dict[str, Twin] = {}
        self.rename = rename
        names: dict[str, list[str]] = {}
        for rule, role, name, shape, purpose in _tensors(rules, rename):
            param = rule.param(role)
            names.setdefault(param, []).append(name)
            if param not in ties:
                self.wanted[name] = Wanted(shape, purpose, fixed.get(param))
        for second, first in ties.items():
            reason = f"the config ties {second} to {first}"
            for name, other in zip(names.get(second, ()), names.get(first, ()), strict=False):
                if name != other:
                    self.twins[name] = Twin(other, False, reason)
        for rule in rules:
            for role in rule.roles:
                if len(rule.parts) > 1 and rule.fused(role) is None:
                    kept, *others = names[rule.param(role)]
                    for name in others:
                        reason = f"both fill {rule.param(role)}"
                        self.twins[name] = Twin(kept, True, reason)

    def renamed(self, recipe: Recipe) -> Recipe:
        """A recipe with the checkpoint's names in place of the plan's."""
        if not self.rename:
            return recipe
        return [renamed_reads(op, lambda name: original(name, self.rename)) for op in recipe]

    def moved(self, index: Index | None) -> dict[str, str]:
        """Tied tensors that the checkpoint holds under their second name only: first -> second."""
        if index is None:
            return {}
        return {
            twin.first: name
            for name, twin in self.twins.items()
            if not twin.required and twin.first not in index and name in index
        }

    def compare(self, index: Index, source: Source, recipe: Recipe | None) -> list[Problem]:
        """P11: twins hold equal values, wholly or where `recipe` reads them."""
        import torch

        boxes: dict[str, list[Box]] = {}
        for op in recipe or ():
            for name, box in reads(op):
                boxes.setdefault(name, []).append(box)
        problems = []
        for name, twin in self.twins.items():
            if name not in index or twin.first not in index:
                continue
            shape = index[name][0]
            regions = [whole(shape)] if recipe is None else boxes.get(twin.first, [])
            if not all(
                torch.equal(source.read(name, part), source.read(twin.first, part))
                for box in regions
                for part in chunks(box, COMPARED)
            ):
                problems.append(
                    Problem(
                        "P11",
                        f"the checkpoint holds {name} and {twin.first} with different values, but "
                        f"{twin.reason}.",
                    )
                )
        return problems


def _tensors(
    rules: Iterable[Rule], rename: Mapping[str, str]
) -> Iterator[tuple[Rule, str, str, Shape, str]]:
    for rule in rules:
        for role in rule.roles:
            for name, shape, purpose in tensors(rule, role):
                yield rule, role, original(name, rename), shape, purpose
