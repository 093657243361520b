"""Reads settings: YAML files with what they extend, and key=value words."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from core.plugins.discovery import absolute
from core.settings.report import Report
from core.settings.tree import DOTTED, Node, merge, normal, put

LARGEST = 1_000_000  # values of a file
PACKAGED = Path(__file__).resolve().parents[2] / "configs"


class _Loader(yaml.SafeLoader):
    """YAML as people mean it: 1e-3 is a number, and a date is text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith("timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+"),
    list("-+0123456789."),
)


def read_file(name: str | Path, report: Report) -> Node:
    """The settings of a file, upon those that it extends. Adds what is wrong to `report`."""
    found = _find(str(name), Path.cwd())
    if isinstance(found, str):
        report.unread(found)
        return Node({}, str(name))
    return _read(found, report, ())


def read_words(words: Iterable[str], report: Report) -> Node:
    """The settings of key=value words; values are YAML, and text where YAML cannot read them."""
    tree = Node({}, "command line")
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not all(key.split(".")):
            report.lines.append(
                f"command line: {word!r} is not key=value. Settings are written like "
                "model.dtype=float32; one file at a time, see extends."
            )
            continue
        try:
            loader = _Loader(text)
            node = loader.get_single_node()
            if node is not None and _expanded(node) > LARGEST:
                raise _refused("its aliases repeat too much", node)
            walk = _Walk(loader, "command line", report, lines=False)
            if _prose(node, text):
                value = Node(text, "command line", text)
            else:
                value = walk.node(node, tuple(key.split(".")))
                if isinstance(node, yaml.ScalarNode) and not node.style and value.text is not None:
                    value.text = text  # with what YAML takes for a comment
        except (yaml.YAMLError, RecursionError) as error:
            if "." not in key and text.lstrip()[:1] in ("[", "{"):
                report.lines.append(
                    f"command line: {key}: {text!r} is not YAML: {_problem(error)}."
                )
                continue
            value = Node(text, "command line", text)
        single = Node({}, "command line")
        put(single, key, value)
        for section, inner in normal(single).children.items():
            put(tree, section, inner)
    _place_plugins(tree, Path.cwd())
    return tree


def _prose(node: yaml.Node | None, text: str) -> bool:
    """Whether the value is a sentence that only looks like YAML: "Note: this", "-", "# one"."""
    if node is None:
        return bool(text.strip())
    return isinstance(node, yaml.CollectionNode) and not node.flow_style


def packaged() -> list[str]:
    """The names of the configurations that ship."""
    return sorted(path.stem for path in PACKAGED.glob("*.yaml"))


def _read(path: Path, report: Report, above: tuple[Path, ...]) -> Node:
    shown = _shown(path)
    tree = Node({}, shown)
    try:
        text = path.read_text("utf-8-sig")
        if "\0" in text:
            raise UnicodeDecodeError("utf-8", b"", 0, 1, "binary")
    except UnicodeDecodeError:
        report.unread(f"{shown}: is not a text file. A configuration is YAML in UTF-8.")
        return tree
    except OSError as error:
        report.unread(f"{shown}: cannot be read: {error.strerror}.")
        return tree
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return tree
        if _expanded(node) > LARGEST:
            raise _refused("its aliases repeat too much", node)
        if not isinstance(node, yaml.MappingNode):
            report.unread(
                f"{shown}:{node.start_mark.line + 1}: a configuration is a mapping of sections, "
                "such as `model: {path: FOLDER}`; this file holds something else."
            )
            return tree
        tree = _Walk(loader, shown, report).node(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        report.unread(f"{shown}{line}: is not YAML: {_problem(error)}.")
        return tree
    except (yaml.YAMLError, RecursionError) as error:
        report.unread(f"{shown}: is not YAML: {_problem(error)}.")
        return tree
    _place_plugins(tree, path.parent)
    extends = tree.value.pop("extends", None)
    base = Node({}, shown)
    for other in _listed(extends, report):
        assert extends is not None
        found = _find(other, path.parent)
        if isinstance(found, str):
            report.unread(f"{extends.origin}: extends: {found}")
        elif found in (*above, path):
            round_trip = " -> ".join(_shown(p) for p in (*above, path, found))
            report.unread(f"{extends.origin}: extends: runs in a circle: {round_trip}.")
        else:
            merge(base, _read(found, report, (*above, path)))
    merge(base, normal(tree))
    return base


def _expanded(node: yaml.Node, known: dict[int, int] | None = None) -> int:
    """How many values a node has when each alias is written out."""
    known = {} if known is None else known
    if id(node) not in known:
        known[id(node)] = 1  # a node inside itself is refused where it is read
        inner: list[yaml.Node] = []
        if isinstance(node, yaml.CollectionNode):
            inner = [
                n for item in node.value for n in (item if isinstance(item, tuple) else [item])
            ]
        known[id(node)] += sum(_expanded(each, known) for each in inner)
    return known[id(node)]


class _Walk:
    """Turns YAML nodes into settings; notes keys that are set twice."""

    def __init__(self, loader: _Loader, file: str, report: Report, *, lines: bool = True) -> None:
        self.loader, self.file, self.report, self.lines = loader, file, report, lines
        self.seen: set[int] = set()
        self.open: set[int] = set()

    def node(self, node: yaml.Node | None, at: tuple[str, ...], line: int | None = None) -> Node:
        """The settings at and below a YAML node, which lies at the key `at`."""
        origin = f"{self.file}:{line}" if line and self.lines else self.file
        if not isinstance(node, yaml.MappingNode):
            value = None if node is None else self._value(node)
            scalar = isinstance(node, yaml.ScalarNode) and value is not None
            return Node(value, origin, node.value if node is not None and scalar else None)
        if id(node) in self.open:
            raise _refused("a mapping contains itself", node)
        if node.tag != "tag:yaml.org,2002:map":
            raise _refused(f"the tag {node.tag} is not allowed", node)
        self.open.add(id(node))
        if id(node) not in self.seen:  # an alias shows one node in several places
            self.seen.add(id(node))
            self._twice(node, at)
        self.loader.flatten_mapping(node)
        tree = Node({}, origin)
        for key, value in node.value:
            name = str(key.value)
            inner = (*at, name) if at in DOTTED else (*at, *name.split("."))
            put(tree, name, self.node(value, inner, self._line(key)), at)
        self.open.remove(id(node))
        return tree

    def _twice(self, node: yaml.MappingNode, at: tuple[str, ...]) -> None:
        first: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _refused("a key must be a word", key)
            if key.value in first and key.value != "<<":
                full = ".".join((*at, key.value))
                self.report.lines.append(
                    f"{self.file}:{self._line(key)}: {full}: is set twice, "
                    f"first on line {first[key.value]}. Keep one."
                )
            first.setdefault(key.value, self._line(key))

    def _value(self, node: yaml.Node) -> Any:
        try:
            return self.loader.construct_object(node, deep=True)
        except (ValueError, TypeError, OverflowError) as error:  # 0x_ looks like a number
            raise _refused(f"{getattr(node, 'value', '')!r} has no value: {error}", node) from error

    @staticmethod
    def _line(node: yaml.Node) -> int:
        return int(node.start_mark.line) + 1


def _find(name: str, folder: Path) -> Path | str:
    """The file of a configuration, packaged ones by name; or the sentence why there is none."""
    path = folder / Path(name).expanduser()
    if os.path.isfile(path):  # Path's own raises for a name that is too long
        return path.resolve()
    if os.path.isdir(path):
        return f"{name}: is a folder, not a configuration."
    if Path(name).parent.as_posix() in (".", "configs"):
        for ours in (PACKAGED / Path(name).name, PACKAGED / f"{Path(name).name}.yaml"):
            if os.path.isfile(ours):
                return ours
    here = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
    names = packaged()
    near = get_close_matches(path.name, here, n=1) or get_close_matches(path.stem, names, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return f"{name}: there is no such file.{hint} Configurations that ship: {', '.join(names)}."


def _listed(node: Node | None, report: Report) -> list[str]:
    value: Any = [] if node is None else node.value
    names = [value] if isinstance(value, str) else value
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        return names
    assert node is not None
    report.unread(f"{node.origin}: extends: must be a file or a list of files.")
    return []


def _place_plugins(tree: Node, folder: Path) -> None:
    node = tree.children.get("plugins")
    if node is not None and isinstance(node.value, list):
        node.value = [absolute(w, folder) if isinstance(w, str) else w for w in node.value]


def _refused(problem: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _problem(error: Exception) -> str:
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    if "'\\t'" in problem:
        return "a tab stands where YAML allows only spaces"
    return " ".join(problem.split())


def _shown(path: Path) -> str:
    """The path as a user would write it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
