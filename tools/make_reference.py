"""Writes docs/reference.md from the docstrings of core: after a change of anything public."""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from core import hooks
from core.config import COMPONENTS
from core.importing import load_path
from core.registry import Registry, registries
from tools.public_names import CHAPTERS, CHOSEN_BY, ROOT, listed
from tools.source_docs import (
    Definition,
    define,
    define_value,
    is_required,
    kind,
    markdown,
    signature,
)

PAGE = ROOT / "docs" / "reference.md"

HEAD = """\
# Reference

<!-- Made by `python -m tools.make_reference` from the docstrings: change those. -->

Everything that a plugin may import from `core` and rely on. [plugins.md](plugins.md) is the guide
that says what to do with it, and [compatibility.md](compatibility.md) what may change and when.
Built-in plugins import some further names. None is hidden from yours, but what is not on this page
can change with any release.
"""
MADE = "Plait makes it like this. A subclass that defines `__init__` calls the one of this class."
HOOKS = """\
A hook is a function marked `@hookimpl` (`from core.hooks import hookimpl`) in a plugin's module. It
may take fewer arguments than listed; it gets those that it names.
"""
REGISTRIES = """\
Each is an attribute of what the hook `register` is given, and of `core.registry`. The target of an
entry derives from the class in the last column.
"""
INTERFACES = """\
A method marked *required* must be defined; the others have a default that is right for most. Each
interface has a version: a component may repeat it (`interface = 1`) to say what it was written for.

Where a component is called decides what becomes of an exception. A `UserError` always reaches the
user as the sentence that it is. For anything else: before the engine runs, it ends the start; in a
step, it ends the requests of that step, and with several ranks the engine; in what concerns one
request, that request alone. Whoever sees the error is told the plugin, its version and the line.
"""


def page() -> str:
    """The whole page."""
    chapters = [
        ("Hooks", _hooks()),
        ("Registries", _registries()),
        ("Interfaces", _interfaces()),
        *((chapter.title, _chapter(chapter.text, chapter.names)) for chapter in CHAPTERS),
    ]
    bodies = [(title, "\n\n".join(parts)) for title, parts in chapters]
    text = "\n\n".join(f"## {title}\n\n{body}" for title, body in bodies)
    anchors = _anchors(text)
    lines = []
    for title, body in bodies:
        names = re.findall(r"^### `(.+)`$", body, flags=re.M)
        links = ", ".join(f"[{name}](#{anchors[f'### {name}']})" for name in names)
        lines.append(f"- [{title}](#{anchors[f'## {title}']}){': ' * bool(links)}{links}")
    linked = re.sub(r"\]\(#=(\w+)\)", lambda found: f"](#{anchors[f'### {found[1]}']})", text)
    return "\n\n".join([HEAD.strip(), "\n".join(lines), linked]) + "\n"


def interface_classes() -> Iterator[tuple[str, Registry[Any], type[Any]]]:
    """(attribute, registry, the class that its components derive from), in order of the table."""
    for name, registry in registries.all().items():
        assert registry.base is not None
        yield name, registry, load_path(registry.base)


def documented() -> set[str]:
    """The names that have a heading on the page, for links from signatures."""
    return {name for _, name in (*listed(), *interfaces())}


def interfaces() -> Iterator[tuple[str, str]]:
    """(module to import it from, name) of each class that components derive from."""
    for _, _, cls in interface_classes():
        package = "core.interfaces" if "interfaces" in cls.__module__ else "core.parallel"
        yield package, cls.__name__


def _hooks() -> Iterator[str]:
    yield HOOKS.strip()
    for names, whose in (
        (hooks.OFFERING, "Answered by every plugin that is loaded."),
        (hooks.ACTING, "Answered by the plugins that the configuration names."),
    ):
        for name in names:
            found = define(getattr(hooks, name))
            yield "\n\n".join(
                [
                    _heading(found.name),
                    _code(signature(found.function)),
                    whose,
                    markdown(found.text),
                ]
            )


def _registries() -> Iterator[str]:
    yield REGISTRIES.strip()
    sections = {attribute: section for section, attribute in COMPONENTS.items()}
    rows = ["| registry | holds | chosen by | derives from |", "| --- | --- | --- | --- |"]
    for name, registry, cls in interface_classes():
        by = f"`{sections[name]}:`" if name in sections else CHOSEN_BY[name]
        link = f"[`{cls.__name__}`](#={cls.__name__})"
        rows.append(f"| `{name}` | {_plural(registry.kind)} | {by} | {link} |")
    yield "\n".join(rows)
    yield _class(define(Registry), "core.registry")


def _interfaces() -> Iterator[str]:
    yield INTERFACES.strip()
    for (name, _, cls), (module, _) in zip(interface_classes(), interfaces(), strict=True):
        found = define(cls)
        yield _class(found, module, f"Registry `{name}`. Version {cls.interface}.", MADE)


def _chapter(text: str, names: dict[str, str]) -> Iterator[str]:
    if text:
        yield text
    for module, listed_names in names.items():
        for name in listed_names.split():
            thing = getattr(import_module(module), name)
            if inspect.isclass(thing):
                yield _class(define(thing), module)
                continue
            if inspect.isfunction(thing):
                found = define(thing)
                code, text = signature(found.function), markdown(found.text)
            else:
                code, text = define_value(import_module(module), name)
            same = [other for other in listed() if other[1] == name]
            title = name if len(same) == 1 else f"{module}.{name}"
            parts = [_heading(title), _import(module, name), _code(code), text]
            yield "\n\n".join(filter(None, parts))


def _class(found: Definition, module: str, about: str = "", made: str = "") -> str:
    parts = [_heading(found.name), " ".join(filter(None, [_import(module, found.name), about]))]
    parts.append(markdown(found.text))
    fields = [row for row in found.fields() if row[0] != "interface"]  # said above
    if fields:
        rows = ["| attribute | type | default | meaning |", "| --- | --- | --- | --- |"]
        for name, type_, default, meaning in fields:
            type_ = re.sub(r"^ClassVar\[(.*)\]$", r"\1", type_)
            shown = [f"`{name}`", f"`{type_}`", f"`{default}`" if default else "", meaning]
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in shown) + " |")
        parts.append("\n".join(rows))
    if made and (constructor := found.constructor()):
        parts += [_code(signature(constructor, found.name).removesuffix(" -> None")), made]
    for method in found.methods():
        marks = [kind(method).capitalize(), "Required" if is_required(method) else ""]
        said = " ".join(f"*{mark}.*" for mark in marks if mark)
        text = markdown(ast.get_docstring(method) or "")
        parts += [_code(signature(method)), f"{said} {text}".strip()]
    if links := _links(parts, found.name):
        parts.append(f"See {links}.")
    return "\n\n".join(filter(None, parts))


def _links(parts: list[str], own: str) -> str:
    code = " ".join(re.findall(r"```python\n(.*?)```", "\n".join(parts), re.S))
    names = sorted(set(re.findall(r"\w+", code)) & (documented() - {own}))
    return ", ".join(f"[{n}](#={n})" for n in names if n[0].isupper())


def _heading(name: str) -> str:
    return f"### `{name}`"


def _import(module: str, name: str) -> str:
    return f"`from {module} import {name}`."


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _plural(kind: str) -> str:
    return f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"


def _anchors(text: str) -> dict[str, str]:
    """The anchor of each heading, as GitHub makes them: of two alike the second gets a number."""
    found: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for level, title in re.findall(r"^(##+) `?(.+?)`?$", text, flags=re.M):
        anchor = re.sub(r"[^\w -]", "", title).lower().replace(" ", "-")
        assert f"{level} {title}" not in found, f"two headings {title}"
        found[f"{level} {title}"] = f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor
        seen[anchor] += 1
    return found


if __name__ == "__main__":
    PAGE.write_text(page())
