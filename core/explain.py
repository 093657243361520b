"""Help for the command line, and the reference of every key, both made from the dataclasses."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, Field, is_dataclass
from difflib import get_close_matches
from typing import Any, get_type_hints

from core.config import COMPONENTS, Config
from core.errors import UserError
from core.importing import cause, load_path
from core.interrupts import CtrlC
from core.registry import Entry, registries
from core.settings.checking import words
from core.settings.files import packaged
from core.settings.sections import sections, settable
from core.settings.tree import default_use
from core.settings.yaml_text import flow

USAGE = """\
python -m core.run CONFIG [key=value ...]

CONFIG is a YAML file, or the name of one that ships. Words such as model.dtype=float32 or
sampler=NAME change it; `run:` names the app that uses the model.

  --help [SECTION]   this text, or the keys of a section
  --list-plugins     plugins and components, with what is missing or broken
  --print-config     the whole configuration, where each value comes from, and `auto` resolved
  -p NAME            load a plugin and let it act; also -p ./file.py, -p module, -p no:NAME
  --strict           let no plugin fail quietly; show its traceback
  --version          the version of Plait
"""


def general() -> str:
    """What `--help` prints."""
    rows = [(f.name, f.metadata["help"]) for f in settable(Config)]
    rows.insert(0, ("extends", "a file, or a list of files, whose settings this one changes"))
    listed = "\n".join(f"  {name:18} {text}" for name, text in rows)
    return f"{USAGE}\nsections:\n{listed}\n\nconfigurations that ship: {', '.join(packaged())}\n"


def section(name: str) -> str:
    """What `--help SECTION` prints. UserError if there is no such section."""
    known = sections()
    if name in known:
        rows = [_row(known[name], field, f"{name}.") for field in settable(known[name])]
        return f"{name}: {_help(name)}\n\n" + "".join(_paragraph(*row) for row in rows)
    if name in COMPONENTS:
        return "".join(_component_help(name))
    if name == "plugins":
        return f"plugins: {_help(name)}\n"
    every = [f.name for f in settable(Config)]
    near = get_close_matches(name, every, n=1)
    hint = f"Did you mean {near[0]}? " if near else ""
    raise UserError(f"--help: there is no section {name!r}. {hint}Sections: {', '.join(every)}.")


def reference() -> str:
    """Every key as Markdown tables: docs/configuration.md ends with them."""
    parts = [
        _markdown_table(f"`{n}`", _help(n), _rows(cls, f"{n}.")) for n, cls in sections().items()
    ]
    for name, attribute in COMPONENTS.items():
        parts.append(f"## `{name}`\n\n{_sentence(_help(name))} Default: `{default_use(name)}`.\n")
        for entry in registries.all()[attribute].entries():
            parts.append(_markdown_component(name, entry))
    return "\n".join(parts)


def options(entry: Entry) -> type[Any] | str:
    """The Options of a component, or why they cannot be shown."""
    with CtrlC() as ctrl_c:
        try:
            target = load_path(entry.target) if isinstance(entry.target, str) else entry.target
        except BaseException as error:  # whatever a stranger's module comes up with
            ctrl_c.heed()
            missing = ", ".join(entry.missing())
            return f"needs {missing}" if missing else f"cannot be imported: {cause(error)}"
    found = getattr(target, "Options", None)
    return found if is_dataclass(found) and isinstance(found, type) else "has no options"


def _component_help(name: str) -> Iterator[str]:
    registry = registries.all()[COMPONENTS[name]]
    yield f"{name}: {_help(name)}; a {registry.kind} (default: {default_use(name)})\n"
    for entry in registry.entries():
        missing = entry.missing()
        state = f" [needs {', '.join(missing)}]" if missing else ""
        yield f"\n{entry.name}: {entry.summary or entry.path} ({entry.provider.source}){state}\n"
        found = options(entry)
        if not isinstance(found, str):
            for row in _rows(found, f"{name}."):
                yield _paragraph(*row)
        elif not missing and found != "has no options":
            yield f"  {found}\n"


def _rows(cls: type[Any], prefix: str) -> list[tuple[str, str, str, str]]:
    return [_row(cls, field, prefix) for field in settable(cls)]


def _row(cls: type[Any], field: Field[Any], prefix: str) -> tuple[str, str, str, str]:
    """(key, type in words, default, help)"""
    hint = get_type_hints(cls)[field.name]
    if field.default is not MISSING:
        default = flow(field.default)
    elif field.default_factory is not MISSING:
        default = flow(field.default_factory())
    else:
        default = "required"
    return prefix + field.name, words(hint), default, field.metadata.get("help", "")


def _help(name: str) -> str:
    (found,) = [f for f in settable(Config) if f.name == name]
    text: str = found.metadata["help"]
    return text


def _paragraph(key: str, kind: str, default: str, help: str) -> str:
    body = textwrap.fill(help, 92, initial_indent="      ", subsequent_indent="      ")
    return f"  {key}: {kind} (default: {default})\n{body}\n" if default != "required" else (
        f"  {key}: {kind} (required)\n{body}\n"
    )  # fmt: skip


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].removesuffix(".") + "."


def _markdown_component(section: str, entry: Entry) -> str:
    needs = f" Needs {', '.join(f'`{n}`' for n in entry.needs)}." if entry.needs else ""
    title, text = f"`{section}: {entry.name}`", f"{entry.summary or entry.path}"
    found = options(entry)
    rows = [] if isinstance(found, str) else _rows(found, f"{section}.")
    return _markdown_table(title, _sentence(text) + needs, rows, level=3)


def _markdown_table(
    title: str, text: str, rows: list[tuple[str, str, str, str]], level: int = 2
) -> str:
    lines = [f"{'#' * level} {title}", "", _sentence(text) if level == 2 else text, ""]
    if rows:
        lines += ["| key | value | default | meaning |", "| --- | --- | --- | --- |"]
    for key, kind, default, help in rows:
        shown = default if default == "required" else f"`{default}`"
        cells = [f"`{key}`", kind, shown, help]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines).rstrip() + "\n"
