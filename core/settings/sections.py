"""Fills a dataclass from a tree of settings and collects every mistake on the way."""

from __future__ import annotations

from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from difflib import get_close_matches
from typing import Any, get_type_hints

from core.config import COMPONENTS, Config
from core.errors import UserError
from core.settings.checking import BadAnnotation, Unfit, check
from core.settings.report import Key, Report
from core.settings.tree import Node


@dataclass
class NoOptions:
    """The options of a component that declares none."""


def settable(cls: type[Any]) -> list[Field[Any]]:
    """The fields of a dataclass that a configuration may set."""
    return [f for f in fields(cls) if f.init and not f.metadata.get("internal")]


def fill(cls: type[Any], node: Node, key: Key, report: Report, owner: str = "") -> Any:
    """An instance of the dataclass `cls` from the settings at `key`; a wrong one keeps its default.

    `owner` names the component whose options these are. None if an instance cannot be made.
    """
    if not isinstance(node.value, dict):
        names = ", ".join(f.name for f in settable(cls)) or "none"
        report.mistake(key, node.origin, f"takes settings of its own, not a value: {names}.")
        return None
    try:
        hints = get_type_hints(cls)
    except NameError as error:
        report.mistake(key, node.origin, f"{owner}: its options cannot be read: {error}.")
        return None
    if "__annotations__" in vars(cls) and "__dataclass_fields__" not in vars(cls):
        sentence = f"{owner}: {cls.__qualname__} is not a dataclass. Write @dataclass above it."
        report.mistake(key, node.origin, sentence)
        return None
    known = {f.name: f for f in settable(cls)}
    values: dict[str, Any] = {}
    before = len(report.lines)
    for name, child in node.children.items():
        if ".".join((*key, name)) in report.wrong:
            continue
        if name not in known:
            report.mistake((*key, name), child.origin, _unknown(name, key, list(known), owner))
        elif isinstance(hints[name], type) and is_dataclass(hints[name]):
            values[name] = fill(hints[name], child, (*key, name), report, owner)
        else:
            try:
                values[name] = check(hints[name], child.plain(), child.text)
                report.origins[".".join((*key, name))] = child.origin
            except Unfit as error:
                report.mistake((*key, name), child.origin, str(error))
            except BadAnnotation as error:
                sentence = f"{owner}: its option {name!r} has a type that no setting fits: {error}."
                report.mistake((*key, name), child.origin, sentence)
    for name, field in known.items():
        absent = name not in values and field.default is MISSING
        if absent and field.default_factory is MISSING:
            if ".".join((*key, name)) not in report.wrong:
                help = field.metadata.get("help", "")
                report.mistake(
                    (*key, name), "", f"is required: {help}." if help else "is required."
                )
            values[name] = "" if hints[name] is str else None
    if owner and len(report.lines) > before:
        return None
    try:
        return cls(**values)
    except UserError as error:
        for line in str(error).splitlines():
            report.mistake(key, node.origin, line)
        return None
    except (ValueError, TypeError) as error:
        report.mistake(key, node.origin, str(error))
        return None


def sections() -> dict[str, type[Any]]:
    """The sections that are no components, with their dataclasses."""
    hints = get_type_hints(Config)
    return {f.name: hints[f.name] for f in settable(Config) if is_dataclass(hints[f.name])
            and f.name not in COMPONENTS}  # fmt: skip


def keys() -> list[str]:
    """Every key that does not belong to a component's options."""
    found = ["plugins", "extends", *COMPONENTS]
    for section, cls in sections().items():
        found += [section, *(f"{section}.{f.name}" for f in settable(cls))]
    return found


def unknown_section(name: str, node: Node) -> str:
    """The sentence about a top-level key that does not exist."""
    if name == "extends":
        return "belongs into a file. On the command line, name that file first."
    every = keys()
    top = [key for key in every if "." not in key]
    inner = [f"{name}.{child}" for child in node.children]
    near = [k for k in every if k.endswith(f".{name}")] or get_close_matches(name, top, n=1)
    near = near or [k for i in inner for k in get_close_matches(i, every, n=1)]
    hint = f"Did you mean {near[0]}?" if near else f"Sections: {', '.join(top)}."
    return f"there is no such section. {hint}"


def _unknown(name: str, key: Key, known: list[str], owner: str) -> str:
    near = get_close_matches(name, known, n=1)
    if owner:
        hint = f"Did you mean {near[0]!r}? " if near else ""
        return f"{owner} has no such option. {hint}Options: {', '.join(known) or 'none'}."
    near = [".".join((*key, name)) for name in near]
    near = near or [k for k in keys() if k.rpartition(".")[2] == name]
    hint = f"Did you mean {near[0]}?" if near else f"{key[0]} has: {', '.join(known)}."
    return f"there is no such key. {hint}"
