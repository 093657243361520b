"""Checks one value against a type annotation, and says in words what it should be."""

from __future__ import annotations

import types
from dataclasses import make_dataclass
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    type(None): "null",
}
PLURALS = {int: "whole numbers", float: "numbers"}


class Unfit(Exception):
    """The value does not fit; the message continues "KEY: ..."."""


class BadAnnotation(Exception):
    """The annotation is none that settings can fill."""


def check(hint: Any, value: Any, text: str | None = None) -> Any:
    """`value` as `hint` wants it; nothing is rounded or guessed. Raises Unfit.

    `text` is a YAML scalar as written, which is taken where text is wanted: a path called 007
    stays 007. Text that OmegaConf reads as a number or a switch becomes one, so that environment
    variables can fill any setting.
    """
    kinds = _kinds(hint)
    if Any in kinds or (value is None and type(None) in kinds):
        return value
    if value is None:
        raise Unfit(f"must not be null. It takes {words(hint)}.")
    for given in (value, text):
        for kind in kinds:
            if _literal(kind) and type(given) is type(kind) and given == kind:
                return kind
    texts = [kind for kind in kinds if kind in (str, Path)]
    if text is not None and texts and not {int, float} & set(kinds):
        return value if isinstance(value, bool) and bool in kinds else texts[0](text)
    for kind in kinds:
        if not _literal(kind) and _may_become(value, kind):
            try:
                return _convert(kind, value)
            except Unfit:
                continue
    raise Unfit(_wanted(hint, value))


def words(hint: Any) -> str:
    """An annotation as a reader says it: "a whole number or null"."""
    *others, last = [word for kind in _kinds(hint) for word in _words(kind)]
    return f"{', '.join(others)} or {last}" if others else last


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The alternatives of an annotation: types, and the values of a Literal."""
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(kind for part in get_args(hint) for kind in _kinds(part))
    return get_args(hint) if get_origin(hint) is Literal else (hint,)


def _may_become(value: Any, kind: Any) -> bool:
    """Rules stricter than OmegaConf's: no number is a switch, no switch a number or text."""
    if isinstance(value, bool):
        return kind is bool
    if isinstance(value, int | float):
        return kind in (int, float) or not isinstance(kind, type) or _enum(kind)
    return kind is not type(None)


def _literal(kind: Any) -> bool:
    return isinstance(kind, str | int)


def _enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _words(kind: Any) -> list[str]:
    if _enum(kind):
        return list(kind.__members__)
    return ["true", "false"] if kind is bool else [_word(kind)]


def _word(kind: Any) -> str:
    if _literal(kind):
        return str(kind)
    if get_origin(kind) in (list, tuple):
        inner = get_args(kind)[0]
        return f"a list of {PLURALS.get(inner) or words(inner)}"
    if get_origin(kind) is dict:
        inner = get_args(kind)[1]
        return "a mapping" if inner is Any else f"a mapping to {PLURALS.get(inner) or words(inner)}"
    return WORDS.get(kind) or str(getattr(kind, "__name__", kind))


def _wanted(hint: Any, value: Any) -> str:
    shown = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    choices = [str(k) for k in _kinds(hint) if _literal(k)]
    choices += [name for k in _kinds(hint) if _enum(k) for name in k.__members__]
    near = get_close_matches(str(value), choices, n=1)
    hint_ = f" Did you mean {near[0]}?" if near else ""
    if any(get_origin(k) is list for k in _kinds(hint)) and isinstance(value, str):
        hint_ = f" Write [{value}]."
    return f"must be {words(hint)}, not {shown}.{hint_}"


def _convert(hint: Any, value: Any) -> Any:
    # text is not shown to OmegaConf, which would find references in ${x} and gaps in ???
    if hint is str and isinstance(value, str):
        return value
    if hint == dict[str, Any] and isinstance(value, dict):
        return value
    if hint == list[str] and isinstance(value, list) and all(isinstance(v, str) for v in value):
        return value
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        schema = OmegaConf.structured(make_dataclass("Value", [("value", hint)]))
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        raise BadAnnotation(f"{hint} ({str(error).splitlines()[0]})") from error
    try:
        OmegaConf.update(schema, "value", value, force_add=True)
        return vars(OmegaConf.to_object(schema))["value"]
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        raise Unfit from error
