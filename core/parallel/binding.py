"""Binding: names in a plan and its axes become strategies and partitioners, or a P4 each."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from core import registry
from core.errors import UserError
from core.parallel.axes import Axis, Partitioner
from core.parallel.problems import Problem, listed, nearest
from core.parallel.strategy import BadSetting, Sharding, fill_options
from core.parallel.syntax import PartSpec, RuleSpec


@dataclass(frozen=True)
class AxisGroup:
    """Axes that one partitioner cuts together, and the config fields behind them."""

    names: tuple[str, ...]
    fields: tuple[str, ...]
    partitioner: Partitioner

    @property
    def label(self) -> str:
        """`'q|kv' (num_attention_heads=16, num_key_value_heads=8)`, for messages."""
        counts = zip(self.fields, self.partitioner.counts, strict=True)
        return f"{'|'.join(self.names)!r} ({', '.join(f'{f}={n}' for f, n in counts)})"


@dataclass(frozen=True)
class Bound:
    """The strategies of one plan entry: of the whole, and of each part."""

    whole: Sharding
    parts: tuple[Sharding, ...]


def number(config: Any, name: str) -> int:
    """A whole number that the config holds. Raises BadSetting."""
    value = getattr(config, name, None)
    if type(value) is int:
        return value
    known = [key for key, held in vars(config).items() if type(held) is int]
    raise BadSetting(f"{type(config).__name__} has no whole number {name!r}.{nearest(name, known)}")


def axis_names(axes: Mapping[str, Axis]) -> list[str]:
    """Every axis by its own name; the key `q|kv` declares two."""
    return [name.strip() for key in axes for name in key.split("|")]


def bind_axes(axes: Mapping[str, Axis], config: Any, problems: list[Problem]) -> list[AxisGroup]:
    """Find each axis's partitioner and its sizes in the config. Appends P4."""
    groups = []
    for key, declared in axes.items():
        names = tuple(name.strip() for name in key.split("|"))
        try:
            if len(names) != len(declared.fields):
                raise BadSetting(f"it names {len(names)} axes for {len(declared.fields)} fields")
            partitioner = _partitioner(declared, config)
        except (UserError, BadSetting) as error:
            problems.append(Problem("P4", f"axis {key!r}: {_sentence(error)}", key))
            continue
        groups.append(AxisGroup(names, declared.fields, partitioner))
    return groups


def _partitioner(declared: Axis, config: Any) -> Partitioner:
    kind: type[Partitioner] = registry.partitions.get(declared.kind)
    if len(declared.fields) != kind.arity:
        raise BadSetting(
            f"{declared.kind} cuts {kind.arity} config fields together, not {len(declared.fields)}"
        )
    counts = [number(config, name) for name in declared.fields]
    hints = typing.get_type_hints(kind.Options)
    settings = {
        name: number(config, value) if isinstance(value, str) and hints.get(name) is int else value
        for name, value in declared.settings.items()
    }
    return kind(counts, fill_options(kind.Options, settings))


def bind_strategies(
    specs: Mapping[str, RuleSpec], axes: Mapping[str, Axis], problems: list[Problem]
) -> dict[str, Bound]:
    """Make the strategies of every plan entry. Appends P4."""
    bound = {}
    known = axis_names(axes)
    for key, spec in specs.items():
        try:
            parts = tuple(_strategy(part, known) for part in spec.parts)
            whole = _composite(spec, parts) if spec.composite else parts[0]
        except (UserError, BadSetting) as error:
            problems.append(Problem("P4", f"rule {key!r}: {_sentence(error)}", key))
            continue
        bound[key] = Bound(whole, parts)
    return bound


def _strategy(spec: PartSpec, known: list[str]) -> Sharding:
    kind: type[Sharding] = registry.sharding.get(spec.strategy)
    if kind.composite:
        raise BadSetting(f"{spec.strategy} needs parts")
    axis = spec.axis or kind.default_axis
    if kind.takes_axis and axis is None:
        raise BadSetting(f"{spec.strategy} needs an axis, as in '{spec.strategy}:mlp'")
    if not kind.takes_axis and axis is not None:
        raise BadSetting(f"{spec.strategy} takes no axis, so ':{axis}' means nothing")
    made = kind(axis, fill_options(kind.Options, spec.options))
    for name in made.dims.values():
        if name not in known:
            raise BadSetting(f"no axis {name!r}.{nearest(name, known)} Axes: {listed(known)}")
    return made


def _composite(spec: RuleSpec, parts: tuple[Sharding, ...]) -> Sharding:
    kind: type[Sharding] = registry.sharding.get(spec.strategy)
    if not kind.composite:
        raise BadSetting(f"{spec.strategy} takes no parts")
    return kind(None, fill_options(kind.Options, {}), parts)


def _sentence(error: Exception) -> str:
    text = str(error)
    return text if text.endswith((".", "?")) else text + "."
