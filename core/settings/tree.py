"""Settings before they are checked: a tree in which every value knows where it was written."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from core.config import COMPONENTS, Config, ParallelConfig

DOTTED = {("parallel", f.name) for f in fields(ParallelConfig) if f.metadata.get("dotted")}
"""Mappings whose keys may contain dots, such as `layers.*.q`."""


@dataclass
class Node:
    """A value, or a mapping of further nodes, with its origin ("configs/x.yaml:7")."""

    value: Any  # dict[str, Node] for a mapping
    origin: str
    text: str | None = None  # a plain scalar as it was written: a path called 007 stays 007

    @property
    def children(self) -> dict[str, Node]:
        """The nodes of a mapping; empty for a value."""
        return self.value if isinstance(self.value, dict) else {}

    def plain(self) -> Any:
        """The value alone, mappings as ordinary dicts."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        return self.value


def put(tree: Node, key: str, node: Node, at: tuple[str, ...] = ()) -> None:
    """Set `key`, in which dots descend, in a mapping that lies at `at` of the whole tree."""
    while at not in DOTTED and "." in key:
        head, key = key.split(".", 1)
        inner = tree.value.get(head)
        if inner is None or not isinstance(inner.value, dict):
            inner = tree.value[head] = Node({}, node.origin)
        at, tree = (*at, head), inner
    old = tree.value.get(key)
    if old is not None and isinstance(old.value, dict) and isinstance(node.value, dict):
        for name, child in node.value.items():
            put(old, name, child, (*at, key))
    else:
        tree.value[key] = node


def merge(base: Node, over: Node) -> None:
    """Lay the sections of `over` upon `base`. A component that changes loses its old options."""
    for section, node in over.children.items():
        old = base.children.get(section)
        if section in COMPONENTS and old is not None and "use" in node.children:
            use = old.children.get("use")
            if (use.value if use else default_use(section)) != node.children["use"].value:
                base.value[section] = node
                continue
        put(base, section, node)


def normal(tree: Node) -> Node:
    """`sampler: min-p` as `sampler: {use: min-p}`, and empty sections left out."""
    for section, node in list(tree.children.items()):
        if section in COMPONENTS and not isinstance(node.value, dict):
            tree.value[section] = Node({"use": node}, node.origin)
        elif section in ("model", "parallel", "cache", "observe") and node.value is None:
            del tree.value[section]
    return tree


def from_python(values: Mapping[str, Any], origin: str) -> Node:
    """The tree of a mapping given in Python, with dots in keys allowed."""
    tree = Node({}, origin)
    for key, value in values.items():
        at = tuple(key.split("."))
        put(tree, key, _from_value(value, origin, at))
    return normal(tree)


def _from_value(value: Any, origin: str, at: tuple[str, ...]) -> Node:
    if isinstance(value, Mapping):
        tree = Node({}, origin)
        for key, inner in value.items():
            put(tree, str(key), _from_value(inner, origin, (*at, str(key))), at)
        return tree
    return Node(os.fspath(value) if isinstance(value, os.PathLike) else value, origin)


def leaves(
    node: Node, visit: Callable[[tuple[str, ...], Node], None], at: tuple[str, ...] = ()
) -> None:
    """Call `visit(key, node)` for every value below `node`."""
    if isinstance(node.value, dict):
        for key, child in node.value.items():
            leaves(child, visit, (*at, key))
    else:
        visit(at, node)


def default_use(section: str) -> str:
    (found,) = [f for f in fields(Config) if f.name == section]
    assert callable(found.default_factory)
    name: str = found.default_factory().use
    return name
