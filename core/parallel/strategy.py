"""Strategies: how one weight follows the axes. The interface that sharding plugins implement."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from core.parallel.problems import listed, nearest

if TYPE_CHECKING:
    from core.parallel.guards import Guard


class Sharding:
    """One strategy of a plan, as data: it holds no tensor, no rank and no process group.

    Subclass it and register the class in `sharding`. A plan entry `name:axis?option=value` makes
    one instance. `dims` and `guard` are all that most strategies set.

    Errors: `accepts` refuses a module in a sentence. What it raises while a plan is compiled ends
    the start.
    """

    interface: ClassVar[int] = 1  # the version of this contract that a component was written for
    takes_axis: ClassVar[bool] = True
    default_axis: ClassVar[str | None] = None  # the axis when the plan names none
    composite: ClassVar[bool] = False  # a strategy over parts, such as packed

    @dataclass(frozen=True)
    class Options:
        """What may stand behind `?`, with defaults."""

    def __init__(self, axis: str | None, options: Any, parts: Sequence[Sharding] = ()) -> None:
        self.axis = axis
        self.options = options
        self.parts = tuple(parts)

    @property
    def dims(self) -> Mapping[str, str]:
        """Logical dim (`out`, `in`, `expert`) -> the axis that cuts it."""
        return {}

    @property
    def guard(self) -> type[Guard] | None:
        """The forward mixin with the collective that this cut makes necessary, or None."""
        return None

    def owner(self, role: str) -> int | None:
        """The one rank that keeps this role (others hold 0); None means that everyone does."""
        return None

    def accepts(self, module: Any) -> str | None:
        """None, or a sentence that says why this module cannot be cut like this."""
        return None

    def layout(self) -> tuple[str, str]:
        """-> activations in and out: R whole on every rank, S:axis cut on the last dim, P partial
        sums, T a share of the tokens, as `core.parallel.groups.rows_of` deals them out.

        The conformance kit cuts inputs and puts outputs together by it. Forward passes do not; but
        where there is a T, every token is computed to the end.
        """
        return "R", "R"


class BadSetting(Exception):
    """An option that does not exist or has no such value; the message is a clause."""


def fill_options(kind: type[Any], given: Mapping[str, Any]) -> Any:
    """An options dataclass from names and values, which may be text. Raises BadSetting."""
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    values = {}
    for name, value in given.items():
        if name not in names:
            raise BadSetting(
                f"no setting {name!r}.{nearest(name, names)} Settings: {listed(names)}"
            )
        values[name] = _value(name, hints[name], value)
    return kind(**values)


def _value(name: str, hint: Any, value: Any) -> Any:
    """`value` as the annotated type, where text can stand for bool, int, None and choices."""
    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if value in choices:
            return value
        raise BadSetting(f"{name} is {value!r}; it can be {listed(map(str, choices))}")
    if origin is typing.Union or origin is types.UnionType:
        if value in (None, "none"):
            return None
        hint = next(choice for choice in choices if choice is not type(None))
    if hint is bool:
        known = {"true": True, "false": False}
        lowered = str(value).lower()
        if lowered not in known:
            raise BadSetting(f"{name} is {value!r}; it can be true or false")
        return known[lowered]
    if hint is int:
        if isinstance(value, bool) or not str(value).lstrip("-").isdigit():
            raise BadSetting(f"{name} is {value!r}; it must be a whole number")
        return int(value)
    return value
