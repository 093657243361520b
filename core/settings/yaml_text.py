"""Writes settings as YAML: values on one line, and a whole Config with the origin of each value."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any

import yaml

from core.config import COMPONENTS, Component, Config
from core.settings.sections import settable


class _Dumper(yaml.SafeDumper):
    """Text with line breaks in one line."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    # in double quotes a backslash escapes, so that what is invisible can be shown, and read again
    style = None if value.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def flow(value: Any) -> str:
    """A value as one line of YAML."""
    text = yaml.dump(
        _plain(value), Dumper=_Dumper, default_flow_style=True, width=2**31, allow_unicode=True
    )
    return text.removesuffix("\n").removesuffix("\n...")


def dump(config: Config) -> str:
    """The configuration as a YAML file that gives it again; comments say where values are from."""
    return "".join(_lines(config))


def _lines(config: Config) -> Iterator[str]:
    for field in settable(Config):
        value = getattr(config, field.name)
        if field.name in COMPONENTS:
            yield f"{field.name}:\n"
            yield _line(config, f"{field.name}.use", value.use)
            yield from _section(config, field.name, value.options)
        elif is_dataclass(value):
            yield f"{field.name}:\n"
            yield from _section(config, field.name, value)
        else:
            yield _line(config, field.name, value)


def _section(config: Config, name: str, options: Any) -> Iterator[str]:
    known = options.items() if isinstance(options, dict) else [
        (f.name, getattr(options, f.name)) for f in settable(type(options))
    ]  # fmt: skip
    for key, value in known:
        yield _line(config, f"{name}.{key}", value)


def _line(config: Config, key: str, value: Any) -> str:
    origin = config.origins.get(key) or "default"
    *above, name = key.split(".")
    return f"{'  ' * len(above)}{name}: {flow(value)}  # {origin}\n"


def _plain(value: Any) -> Any:
    if isinstance(value, str):  # a plain ${ would be read as a reference
        return re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
    if isinstance(value, Component):
        return value.use
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(inner) for inner in value]
    if isinstance(value, Enum):
        return value.name
    return str(value) if isinstance(value, PurePath) else value
