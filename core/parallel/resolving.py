"""Resolving: plan entries and the full-size model become rules, with P5 and the shapes of P8."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.parallel.binding import Bound, number
from core.parallel.formats import EXPERT, Dims, Format, expert_format
from core.parallel.problems import Problem, listed
from core.parallel.recipe import Shape
from core.parallel.rules import Part, Rule, pieces, shape
from core.parallel.strategy import BadSetting, Sharding
from core.parallel.syntax import RuleSpec

FormatOf = Callable[[str, Any], Format]  # checkpoint module's name, model's module -> format


@dataclass
class Resolver:
    """Makes the rule of each module, and collects what is wrong."""

    bound: Mapping[str, Bound]
    sizes: Mapping[str, int]  # axis -> elements, uncut
    config: Any
    format_of: FormatOf
    problems: list[Problem]

    def rule(
        self, module: str, spec: RuleSpec, body: Any, shapes: Mapping[str, Shape]
    ) -> Rule | None:
        """The rule of one module of the full-size model; None when it cannot be one."""
        bound = self.bound.get(spec.key)
        if bound is None or not self.sizes.keys() >= {
            axis for strategy in bound.parts for axis in strategy.dims.values()
        }:
            return None  # its P4 was told
        parent, _, own = module.rpartition(".")
        prefix = f"{parent}." if parent else ""
        sources = [prefix + (part.source or own) for part in spec.parts]
        formats = list(dict.fromkeys(self.format_of(source, body) for source in sources))
        format = formats[0]
        if reason := self._refusal(bound, body, formats):
            text = f"{module}: {spec.strategy} does not fit. {reason}"
            self.problems.append(Problem("P5", text))
            return None
        if any(EXPERT in strategy.dims for strategy in bound.parts):
            format = expert_format(format)
        roles = {role: format.dims(role, len(size)) for role, size in shapes.items()}
        if reason := _cuts_nothing(bound.parts, roles):
            self.problems.append(Problem("P5", f"{module}: {spec.strategy} does not fit. {reason}"))
            return None
        try:
            sizes = self._part_sizes(spec, bound.parts, roles, shapes)
        except BadSetting as error:
            self.problems.append(Problem("P4", f"rule {spec.key!r}: {error}.", spec.key))
            return None
        rule = Rule(
            module, spec, bound.whole, tuple(map(Part, sources, bound.parts, sizes)), format, roles
        )
        return rule if self._explains(rule, shapes) else None

    def _refusal(self, bound: Bound, body: Any, formats: Sequence[Format]) -> str | None:
        if reason := bound.whole.accepts(body):
            return reason
        if len(formats) > 1:
            names = listed(format.name for format in formats)
            return f"Its parts are stored as {names}; give those apart modules of their own."
        for dim in (dim for strategy in bound.parts for dim in strategy.dims):
            if dim in formats[0].refuses:
                return f"{formats[0].name} cannot be cut on {dim!r}: {formats[0].refuses[dim]}."
        return None

    def _part_sizes(
        self,
        spec: RuleSpec,
        strategies: Sequence[Sharding],
        roles: Mapping[str, Dims],
        shapes: Mapping[str, Shape],
    ) -> list[dict[str, int]]:
        """Each part's uncut sizes: from its axes, from the plan, and the rest from the model."""
        full = _full_sizes(roles, shapes)
        result = []
        for strategy, part in zip(strategies, spec.parts, strict=True):
            sizes = {d: n for d, n in full.items() if d != spec.dim or not spec.composite}
            sizes.update({d: self.sizes[a] for d, a in strategy.dims.items()})
            if part.size is not None:
                given = part.size
                sizes[spec.dim] = given if isinstance(given, int) else number(self.config, given)
            result.append(sizes)
        unknown = [
            i for i, sizes in enumerate(result) if spec.dim in full and spec.dim not in sizes
        ]
        if len(unknown) > 1:
            names = listed(str(spec.parts[i].source) for i in unknown)
            raise BadSetting(
                f"no axis says how large {names} are on {spec.dim!r}; give each a 'size' (a number "
                "or a config field) in the long form"
            )
        for i in unknown:
            known = sum(sizes[spec.dim] for sizes in result if spec.dim in sizes)
            result[i][spec.dim] = full[spec.dim] - known
        return result

    def _explains(self, rule: Rule, shapes: Mapping[str, Shape]) -> bool:
        """P8 when the uncut module is not what the axes and the plan make of it."""
        found = []
        for role, built in shapes.items():
            planned = shape(rule, role, pieces(rule, role, None, 0, []))
            if planned != built:
                found.append(Problem("P8", differs(rule, role, built, planned, "uncut")))
        self.problems += found
        return not found


def _cuts_nothing(strategies: Sequence[Sharding], roles: Mapping[str, Dims]) -> str | None:
    """A sentence if a strategy names dims, but none that the module has: it would stay whole."""
    held = list(dict.fromkeys(dim for dims in roles.values() for dim, _ in dims))
    for strategy in strategies:
        if strategy.dims and not set(held).intersection(strategy.dims):
            cut = listed(map(repr, strategy.dims))
            return (
                f"It cuts {cut}, and the module has {listed(map(repr, held))}: every rank would "
                "hold all of it. Correct the strategy's dims, or replicate this weight."
            )
    return None


def _full_sizes(roles: Mapping[str, Dims], shapes: Mapping[str, Shape]) -> dict[str, int]:
    """Logical sizes of a module's dims, by the role that stores each dim most finely."""
    finest: dict[str, tuple[int, int]] = {}
    for role, dims in roles.items():
        for (dim, divisor), size in zip(dims, shapes[role], strict=True):
            if dim not in finest or divisor < finest[dim][0]:
                finest[dim] = divisor, size * divisor
    return {dim: size for dim, (_, size) in finest.items()}


def differs(rule: Rule, role: str, built: Shape, planned: Shape, where: str) -> str:
    """The sentence for a parameter whose shape the plan does not explain."""
    parts = f" (parts {', '.join(p.label for p in rule.parts)})" if len(rule.parts) > 1 else ""
    return (
        f"{rule.param(role)}{parts}: the model builds {built} {where}, the plan explains {planned}."
    )


def divisors(rules: Sequence[Rule], names: Sequence[str]) -> list[frozenset[int]]:
    """For each axis, the block sizes that storage formats have on the dims it cuts."""
    found: dict[str, set[int]] = {name: set() for name in names}
    for rule in rules:
        for part in rule.parts:
            for dim, axis in part.strategy.dims.items():
                if axis in found:
                    for dims in rule.roles.values():
                        found[axis].update(d for name, d in dims if name == dim and d > 1)
    return [frozenset(found[name]) for name in names]
