"""Syntax: the values of a plan dict, parsed into rule specifications; and overrides of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from core.parallel.problems import Problem, listed, nearest

PlanDict = Mapping[str, Any]  # what a model author writes: pattern -> string or dict

RULE_KEYS = ("strategy", "axis", "source", "dim", "on_disk", "parts", "perm")
PART_KEYS = ("source", "strategy", "axis", "size")


class Malformed(Exception):
    """A plan value that says nothing; the message is a clause."""


@dataclass(frozen=True)
class PartSpec:
    """One checkpoint module as the plan writes it. No source means the module's own name."""

    strategy: str
    axis: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None
    size: int | str | None = None  # on the fused dim, when no axis says it: a number or a field


@dataclass(frozen=True)
class RuleSpec:
    """One plan entry. `strategy` is that of the whole: the part's own, or `packed`."""

    key: str
    strategy: str
    parts: tuple[PartSpec, ...]
    composite: bool = False
    dim: str = "out"  # on which the parts are laid end to end
    on_disk: str = "split"  # or fused, or interleaved
    ways: int = 1  # interleaved: how many parts alternate
    source: str | None = None  # the one checkpoint module of fused and interleaved
    perm: tuple[int, ...] | None = None  # dim i of the parameter is dim perm[i] on disk


def parse_text(text: str) -> PartSpec:
    """`strategy[:axis][?name=value[&name=value]]`."""
    found = re.fullmatch(r"([^:?&=\s]+)(?::([^:?&=\s]+))?(?:\?(\S+))?", text.strip())
    if not found:
        raise Malformed(f"{text!r} does not read strategy[:axis][?name=value]")
    name, axis, rest = found.groups()
    options = {}
    for pair in rest.split("&") if rest else ():
        option, equals, value = pair.partition("=")
        if not equals:
            raise Malformed(f"{pair!r} in {text!r} does not read name=value")
        options[option] = value
    return PartSpec(name, axis, options)


def parse_rule(key: str, value: object) -> RuleSpec:
    """A plan entry: a string, `{checkpoint module: strategy}` or long form. Raises Malformed."""
    if isinstance(value, str):
        part = parse_text(value)
        return RuleSpec(key, part.strategy, (part,))
    if not isinstance(value, Mapping) or not value:
        raise Malformed(f"{value!r} is neither a string nor a dict")
    if "strategy" in value:
        return _long_form(key, value)
    parts = tuple(_part(source, text) for source, text in value.items())
    return RuleSpec(key, "packed", parts, composite=True)


def _part(source: str, text: object) -> PartSpec:
    if not isinstance(text, str):
        raise Malformed(f"the part {source!r} is {text!r}, not a string")
    part = parse_text(text)
    return PartSpec(part.strategy, part.axis, part.options, source)


def _long_form(key: str, value: Mapping[str, Any]) -> RuleSpec:
    whole = parse_text(str(value["strategy"]))
    extra = {name: v for name, v in value.items() if name not in RULE_KEYS}
    perm = tuple(value["perm"]) if value.get("perm") is not None else None
    if "parts" not in value:
        misplaced = [name for name in ("dim", "on_disk") if name in value]
        if misplaced:
            raise Malformed(f"{misplaced[0]!r} needs 'parts' beside it")
        part = PartSpec(
            whole.strategy,
            value.get("axis", whole.axis),
            {**whole.options, **extra},
            value.get("source"),
        )
        return RuleSpec(key, whole.strategy, (part,), perm=perm)
    if extra or "axis" in value:
        name = next(iter(extra), "axis")
        raise Malformed(f"{name!r} is not a setting beside 'parts'.{nearest(name, RULE_KEYS)}")
    parts = tuple(_long_part(part) for part in value["parts"])
    on_disk, _, count = str(value.get("on_disk", "split")).partition(":")
    if on_disk not in ("split", "fused", "interleaved"):
        raise Malformed(f"on_disk is {on_disk!r}; it can be split, fused or interleaved:N")
    ways = int(count) if count.isdigit() else 0
    if on_disk == "interleaved" and ways != len(parts):
        raise Malformed(f"on_disk is interleaved:{count} but there are {len(parts)} parts")
    if on_disk != "split" and "source" not in value:
        raise Malformed(f"on_disk: {on_disk} needs 'source', the name of the one checkpoint module")
    return RuleSpec(
        key,
        whole.strategy,
        parts,
        composite=True,
        dim=str(value.get("dim", "out")),
        on_disk=on_disk,
        ways=max(ways, 1),
        source=value.get("source"),
        perm=perm,
    )


def _long_part(part: object) -> PartSpec:
    if not isinstance(part, Mapping) or "strategy" not in part or "source" not in part:
        raise Malformed(f"the part {part!r} lacks 'source' or 'strategy'")
    text = parse_text(str(part["strategy"]))
    extra = {name: value for name, value in part.items() if name not in PART_KEYS}
    return PartSpec(
        text.strategy,
        part.get("axis", text.axis),
        {**text.options, **extra},
        str(part["source"]),
        part.get("size"),
    )


def parse_plan(
    plan: PlanDict, overrides: PlanDict | None = None
) -> tuple[dict[str, RuleSpec], list[Problem]]:
    """All rules of a plan, after `overrides` replaced values of keys that it has; and P4s."""
    problems = []
    for key in overrides or {}:
        if key not in plan:
            problems.append(
                Problem(
                    "P4",
                    f"parallel.plan has no rule {key!r} to replace.{nearest(key, plan)} "
                    f"Rules: {listed(plan)}.",
                    key,
                )
            )
    rules = {}
    for key, value in plan.items():
        try:
            rules[key] = parse_rule(key, (overrides or {}).get(key, value))
        except Malformed as error:
            problems.append(Problem("P4", f"rule {key!r}: {error}.", key))
    return rules, problems
