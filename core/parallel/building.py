"""Building: from a model family and a config to a plan for all ranks, with P1 to P8 and P12."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from core.parallel import checks
from core.parallel.axes import Infeasible, Partition, feasible, partition
from core.parallel.binding import AxisGroup, bind_axes, bind_strategies
from core.parallel.compiler import compile_rank
from core.parallel.facts import Facts, facts, on_meta
from core.parallel.formats import DENSE, Format, Quantization
from core.parallel.matching import match
from core.parallel.problems import Problem, ranges
from core.parallel.recipe import Recipe, Shape
from core.parallel.resolving import Resolver, divisors
from core.parallel.rules import Rule
from core.parallel.syntax import PlanDict, parse_plan

if TYPE_CHECKING:
    from torch import nn


@dataclass
class Builder:
    """One attempt to make a plan. Each stage appends to `problems` and leaves what it found."""

    architecture: Any
    config: Any
    tensor: int
    formats: Quantization | None
    replicate_limit: float
    problems: list[Problem] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)
    groups: list[AxisGroup] = field(default_factory=list)  # those that some rule uses
    blocks: dict[str, frozenset[int]] = field(default_factory=dict)  # axis -> storage blocks
    cuts: dict[str, Partition] = field(default_factory=dict)
    configs: list[Any] = field(default_factory=list)
    recipes: list[Recipe] = field(default_factory=list)
    shapes: list[dict[str, Shape]] = field(default_factory=list)
    prepared: dict[str, tuple[Format, int]] = field(default_factory=dict)
    uncut: Facts | None = None
    untied: dict[str, str] = field(default_factory=dict)
    skeletons: list[tuple[Any, nn.Module]] = field(default_factory=list, repr=False)

    def run(self, overrides: PlanDict | None) -> None:
        """All stages; those that need what an earlier one failed to find are left out."""
        self._resolve(overrides)
        if self._cut():
            self._narrow()
            self._compile()
            self._check()

    def model(self, config: Any) -> nn.Module:
        """A model on the meta device, with the parameters of its storage format."""
        model = on_meta(lambda: self.architecture.model(config))
        for name, (format, parts) in self.prepared.items():
            assert self.formats is not None
            self.formats.prepare(model.get_submodule(name), format, parts)
        return model

    def skeleton(self, config: Any) -> nn.Module:
        """The same model at each call and for equal configs: to look at, not to fill."""
        for known, model in self.skeletons:
            if known == config:
                return model
        self.skeletons.append((config, self.model(config)))
        return self.skeletons[-1][1]

    def _format_of(self, source: str, module: Any) -> Format:
        return self.formats.format(source, module) if self.formats is not None else DENSE

    def _resolve(self, overrides: PlanDict | None) -> None:
        specs, mistakes = parse_plan(self.architecture.plan, overrides)
        self.problems += mistakes
        axes = self.architecture.axes
        groups = bind_axes(axes, self.config, self.problems)
        bound = bind_strategies(specs, axes, self.problems)
        whole = on_meta(lambda: self.architecture.model(self.config))
        plain = facts(whole)
        hits, mistakes = match(self.architecture.plan, plain.modules)
        self.problems += mistakes
        for module, key in hits.items():
            if key in specs:
                parent, _, own = module.rpartition(".")
                prefix, body = f"{parent}." if parent else "", plain.modules[module]
                sources = [prefix + (part.source or own) for part in specs[key].parts]
                formats = {self._format_of(source, body) for source in sources}
                if len(formats) == 1 and formats != {DENSE}:
                    self.prepared[module] = formats.pop(), len(sources)
        if self.prepared:
            self.uncut = facts(self.skeleton(self.config))
            self.untied = {a: b for a, b in plain.ties.items() if a not in self.uncut.ties}
        else:
            self.uncut = plain
            self.skeletons.append((self.config, whole))
        sizes = {
            name: size
            for group in groups
            for name, size in zip(group.names, group.partitioner.sizes(), strict=True)
        }
        resolver = Resolver(bound, sizes, self.config, self._format_of, self.problems)
        for module, key in hits.items():
            if key in specs:
                body, shapes = self.uncut.modules[module], self.uncut.shapes[module]
                rule = resolver.rule(module, specs[key], body, shapes)
                if rule is not None:
                    self.rules.append(rule)
        used = {axis for made in bound.values() for s in made.parts for axis in s.dims.values()}
        self.groups = [group for group in groups if used.intersection(group.names)]

    def _cut(self) -> bool:
        """Partition every axis in use. Appends P6."""
        ok = True
        for group in self.groups:
            blocks = divisors(self.rules, group.names)
            self.blocks.update(zip(group.names, blocks, strict=True))
            try:
                parts = partition(group.partitioner, self.tensor, blocks)
            except Infeasible as error:
                works = ranges(feasible(group.partitioner, blocks))
                text = f"axis {group.label}: {error}. Sizes that work: {works}."
                self.problems.append(Problem("P6", text))
                ok = False
                continue
            self.cuts.update(zip(group.names, parts, strict=True))
        known = {
            axis for rule in self.rules for p in rule.parts for axis in p.strategy.dims.values()
        }
        return ok and known <= set(self.cuts)

    def _narrow(self) -> None:
        """The local config of every rank."""
        for rank in range(self.tensor):
            fields: dict[str, int] = {}
            for group in self.groups:
                for name, narrowed in zip(group.names, group.fields, strict=True):
                    count = self.cuts[name].count(rank)
                    if fields.setdefault(narrowed, count) != count:
                        text = f"axes of different cuts share the config field {narrowed!r}."
                        self.problems.append(Problem("P4", text))
            self.configs.append(dataclasses.replace(self.config, **fields))

    def _compile(self) -> None:
        assert self.uncut is not None
        for rank in range(self.tensor):
            recipe, shapes = compile_rank(
                self.rules, self.cuts, rank, self.uncut.ties, self.problems
            )
            self.recipes.append(recipe)
            self.shapes.append(shapes)

    def _check(self) -> None:
        """P8, P11 and P12 of all ranks."""
        assert self.uncut is not None
        uncut, ties = self.uncut.parameters(), self.uncut.ties
        by_param = {rule.param(role): rule for rule in self.rules for role in rule.roles}
        self.problems += checks.check_ties(by_param, ties)
        limit = self.replicate_limit if self.tensor > 1 else 1.0
        self.problems += checks.check_replicated(self.rules, uncut, ties, limit)
        narrowed = "; ".join(
            f"{field} by axis {name!r}"
            for group in self.groups
            for name, field in zip(group.names, group.fields, strict=True)
        )
        built: list[tuple[Any, dict[str, Shape]]] = []
        for rank, config in enumerate(self.configs):
            known = next((shapes for other, shapes in built if other == config), None)
            if known is None:
                local = facts(self.skeleton(config))
                known = local.parameters()
                built.append((config, known))
                self.problems += checks.check_shapes(
                    self.rules, self.shapes[rank], known, uncut, rank, narrowed
                )
            primary = {name: size for name, size in self.shapes[rank].items() if name not in ties}
            self.problems += checks.check_cover(
                self.recipes[rank], primary, by_param, self.cuts, rank
            )
