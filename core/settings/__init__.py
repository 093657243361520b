"""From YAML files, words and keywords to a checked Config; every mistake at once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from core.config import COMPONENTS, Component, Config
from core.errors import UserError
from core.plugins import load as load_plugins
from core.plugins.discovery import absolute
from core.registry import registries
from core.settings import auto
from core.settings.files import read_file, read_words
from core.settings.ranges import out_of_range
from core.settings.references import fill_in
from core.settings.report import Report
from core.settings.sections import NoOptions, fill, sections, unknown_section
from core.settings.tree import Node, default_use, from_python, merge, put


def load(
    config: str | Path | None = None,
    words: Iterable[str] = (),
    *,
    plugins: Iterable[str] = (),
    strict: bool = False,
) -> Config:
    """The configuration of a file (a path, or the name of one that ships) and key=value words.

    `plugins` are further words of the `plugins:` section, as given by `-p`. Loads the plugins
    and resolves every `auto`. UserError lists all mistakes, a line each.
    """
    report = Report()
    trees = [read_file(config, report)] if config is not None else []
    trees.append(read_words(words, report))
    return _build(trees, plugins, strict, report)


class Argument(NamedTuple):
    """A setting given in Python: a section or a full key, and where it was given."""

    key: str
    value: Any
    origin: str


def from_arguments(
    arguments: Iterable[Argument], *, config: str | Path | None = None, strict: bool = False
) -> Config:
    """The configuration of settings given in Python, upon a file if `config` is given.

    Values of sections are mappings; of two arguments about one key the later counts.
    """
    report = Report()
    trees = [read_file(config, report)] if config is not None else []
    tree = Node({}, "")
    for key, value, origin in arguments:
        for section, node in from_python({key: value}, origin).children.items():
            put(tree, section, node)
    return _build([*trees, tree], (), strict, report)


def plugin_words(config: str | Path | None, words: Iterable[str] = ()) -> list[str]:
    """The `plugins:` of a configuration, without reading the rest of it."""
    report = Report()
    tree = Node({}, "") if config is None else read_file(config, report)
    merge(tree, read_words(words, report))
    found = _plugin_words(tree, (), report)
    if report.lines:
        raise UserError("\n".join(report.lines))
    return found


def _build(trees: list[Node], plugins: Iterable[str], strict: bool, report: Report) -> Config:
    if report.unreadable:
        raise UserError("\n".join(report.lines))
    tree = Node({}, "")
    for layer in trees:
        merge(tree, layer)
    fill_in(tree, report)
    words = _plugin_words(tree, plugins, report)
    loaded = True
    try:
        load_plugins(words, strict=strict)
    except UserError as error:
        loaded = False
        report.lines += re.split(r"\n(?! )", str(error))
    known = sections()
    for name, node in tree.children.items():
        if name not in known and name not in COMPONENTS and name != "plugins":
            report.mistake((name,), node.origin, unknown_section(name, node))
    made: dict[str, Any] = {}
    for name, cls in known.items():
        made[name] = fill(cls, tree.children.get(name, Node({}, "")), (name,), report)
    if all(made.values()):
        config = Config(plugins=words, strict=strict, origins=report.origins, **made)
        for key, sentence in out_of_range(config):
            if key not in report.wrong:
                report.mistake(tuple(key.split(".")), report.origins.get(key, ""), sentence)
        if loaded and config.model.weights != "auto":
            _check_source(config.model.weights, report)
        if loaded and "model.device" not in report.wrong:
            _resolve(config, tree, report)
    if report.lines:
        told = {f"note: {line}" for line in report.lines} | {*report.lines}
        notes = [note for note in registries.notes if note not in told]
        raise UserError("\n".join([*report.ordered(), *notes]))
    return config


def _plugin_words(tree: Node, more: Iterable[str], report: Report) -> list[str]:
    node = tree.children.get("plugins", Node([], ""))
    words = node.value
    if not isinstance(words, list) or not all(isinstance(w, str) and w for w in words):
        sentence = "must be a list of names, such as [my_plugin, ./mine.py, no:other]."
        report.mistake(("plugins",), node.origin, sentence)
        words = []
    if node.origin:
        report.origins["plugins"] = node.origin
    return [*words, *(absolute(word, Path.cwd()) for word in more)]


def _check_source(name: str, report: Report) -> None:
    try:
        registries.sources.entry(name)
    except UserError as error:
        key = "model.weights"
        report.mistake(("model", "weights"), report.origins.get(key, ""), _sentence(error))


def _sentence(error: UserError) -> str:
    """The message without the notes, which come once, at the end."""
    return " ".join(line for line in str(error).splitlines() if line not in registries.notes)


def _resolve(config: Config, tree: Node, report: Report) -> None:
    """Settle the device, choose the components and fill their options."""
    config.model.device, why = auto.device(config.model.device)
    if why:
        report.origins["model.device"] = why
    for section, attribute in COMPONENTS.items():
        registry = registries.all()[attribute]
        node = tree.children.get(section, Node({}, ""))
        options = Node({k: v for k, v in node.children.items() if k != "use"}, node.origin)
        use = node.children.get("use", Node(default_use(section), ""))
        name, origin = use.text or use.value, use.origin
        if origin:
            report.origins[f"{section}.use"] = origin
        if not isinstance(name, str):
            names = ", ".join(registry.names())
            report.mistake((section,), origin, f"must name a {registry.kind}: {names}.")
            continue
        if name == "auto" and section in auto.LATER:
            schema, owner = NoOptions, f"{registry.kind} 'auto'"
            setattr(
                config, section, Component(name, fill(schema, options, (section,), report, owner))
            )
            continue
        try:
            if name == "auto":
                name, report.origins[f"{section}.use"] = auto.component(
                    section, config.model.device
                )
            cls = registry.get(name)
        except UserError as error:
            report.mistake((section,), origin, _sentence(error))
            continue
        schema = getattr(cls, "Options", NoOptions)
        filled = fill(schema, options, (section,), report, f"{registry.kind} {name!r}")
        setattr(config, section, Component(name, filled))
