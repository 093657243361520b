"""What a word of the command line means: a component by its name, or with options of its own."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Sequence
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any, get_type_hints

from core.errors import UserError
from core.registry import Registry, registries
from core.settings.files import read_words
from core.settings.report import Report
from core.settings.sections import NoOptions, fill, settable
from core.settings.tree import Node
from core.settings.yaml_text import flow
from core.testing.checkpoints import described
from core.testing.plugin import Kind


def choose(kind: Kind, word: str) -> str:
    """The name under which the registry has what `word` says: NAME, or {use: NAME, key: value}.

    A component with options is registered once more, as a class whose defaults they are. UserError
    for a name or an option that is not there, and for one that is missing.
    """
    registry = registries.all()[kind.registry]
    name, given = _read(kind, word)
    component = registry.get(name)
    schema = getattr(component, "Options", NoOptions)
    missing = [
        field.name
        for field in settable(schema)
        if field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
        and field.name not in given.children
    ]
    if missing:
        example = ", ".join(f"{field}: VALUE" for field in missing)
        raise UserError(
            f"--{kind.option}: the {registry.kind} {name!r} has options without a default. Give "
            f"them as a configuration does: --{kind.option}='{{use: {name}, {example}}}'."
        )
    if not given.children:
        return name
    report = Report()
    options = fill(schema, given, (kind.option,), report, f"{registry.kind} {name!r}")
    _tell(report)
    said = [f"{key}-{flow(node.plain())}" for key, node in given.children.items()]
    label = re.sub(r"[^\w.]+", "-", "-".join([name, *said])).strip("-")
    label = _free(registry, label, component, options)
    registry.register(label, _with_defaults(component, options), summary=f"{name}, as asked for")
    return label


def _free(registry: Registry[Any], label: str, component: type[Any], options: Any) -> str:
    """`label`, or one like it if that is what other options, or another component, are called."""
    wanted = dataclasses.asdict(options)
    taken = {entry.name: entry.target for entry in registry.entries()}
    for free in chain([label], (f"{label}-{number}" for number in count(2))):
        known: Any = taken.get(free)
        if known is None:
            return free
        ours = isinstance(known, type) and known.__bases__ == (component,)
        if ours and dataclasses.asdict(known.Options()) == wanted:
            return free
    raise AssertionError("there is always one more number")


def _read(kind: Kind, word: str) -> tuple[str, Node]:
    """The name in a word, and the options beside it."""
    if not word.lstrip().startswith("{"):
        return word, Node({}, "")
    report = Report()
    tree = read_words([f"{kind.option}={word}"], report)
    _tell(report)
    inner = dict(tree.children[kind.option].children)
    use = inner.pop("use", None)
    if use is None or not isinstance(use.value, str):
        raise UserError(
            f"--{kind.option}={word}: it does not say which {kind.word}. Write "
            "{use: NAME, option: value}."
        )
    return use.value, Node(inner, "")


def _tell(report: Report) -> None:
    """UserError with what was reported, in the words of the kit's command line."""
    if report.lines:
        lines = (re.sub(r"^command line(:\d+)?: ", "", line) for line in report.lines)
        raise UserError("\n".join(f"--{line}" for line in lines))


def _with_defaults(component: type[Any], options: Any) -> type[Any]:
    """A subclass whose Options have the values of `options` as defaults."""
    schema = type(options)
    hints = get_type_hints(schema)
    made: list[tuple[str, Any, Any]] = []
    for known in dataclasses.fields(schema):
        value = getattr(options, known.name)
        default: dict[str, Any] = {"default": value}
        if value.__hash__ is None:
            default = {"default_factory": partial(copy.deepcopy, value)}
        spec = dataclasses.field(init=known.init, metadata=known.metadata, **default)
        made.append((known.name, hints[known.name], spec))
    frozen = schema.__dataclass_params__.frozen
    body = dataclasses.make_dataclass(schema.__name__, made, bases=(schema,), frozen=frozen)
    body.__doc__ = schema.__doc__
    inherited = {"Options": body, "__module__": component.__module__, "__doc__": component.__doc__}
    return type(component.__name__, (component,), inherited)


def wrong_references(folders: Sequence[str], models: Sequence[str] | None) -> list[str]:
    """Sentences about each `--reference` that none of the models under test can use.

    `models` is None where it is not known which these are.
    """
    mistakes = []
    for folder in folders:
        if not Path(folder).is_dir():
            mistakes.append(f"--reference={folder}: there is no such folder.")
            continue
        try:
            names = described(Path(folder)).get("architectures")
        except UserError as error:
            mistakes.append(f"--reference={folder}: {error}")
            continue
        if models is not None and names not in [[model] for model in models]:
            mistakes.append(
                f"--reference={folder}: architectures in its config.json is {names!r}, and the "
                f"models under test are {', '.join(models) or 'none'}. Name its own with --model."
            )
    return mistakes
