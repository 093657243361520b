"""Reads classes and functions as Markdown from their source: signature, docstring, fields."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Definition:
    """A class or function where it is written. Nothing of it depends on the Python that reads."""

    name: str
    node: ast.ClassDef | Function
    lines: tuple[str, ...]  # of its file

    @property
    def text(self) -> str:
        """Its docstring."""
        return ast.get_docstring(self.node) or ""

    @property
    def function(self) -> Function:
        """Itself, if it is one."""
        assert isinstance(self.node, Function)
        return self.node

    def methods(self) -> Iterator[Function]:
        """The public ones that have something to say, and those that are called by syntax."""
        assert isinstance(self.node, ast.ClassDef)
        for child in self.node.body:
            if isinstance(child, Function) and "overload" not in _marks(child):
                spoken = child.name in ("__call__", "__init__") and ast.get_docstring(child)
                if not child.name.startswith("_") or spoken or is_required(child):
                    yield child

    def constructor(self) -> Function | None:
        """Its `__init__`, if it defines one."""
        assert isinstance(self.node, ast.ClassDef)
        found = (n for n in self.node.body if isinstance(n, Function) and n.name == "__init__")
        return next(found, None)

    def fields(self) -> Iterator[tuple[str, str, str, str]]:
        """(name, type, default, meaning) of each annotated attribute of a class."""
        assert isinstance(self.node, ast.ClassDef)
        body = self.node.body
        for child, after in zip(body, [*body[1:], None], strict=True):
            if not isinstance(child, ast.AnnAssign) or not isinstance(child.target, ast.Name):
                continue
            if child.target.id.startswith("_"):
                continue
            default = "" if child.value is None else ast.unparse(child.value)
            if (found := re.match(r"field\(default_factory=(?:lambda: )?(.*)\)$", default)) and (
                found[1] in ("list", "dict", "set")
            ):
                default = f"{found[1]}()"
            yield child.target.id, ast.unparse(child.annotation), default, self._said(child, after)

    def _said(self, child: ast.AnnAssign, after: ast.stmt | None) -> str:
        """The comment behind an attribute with those that continue it, or the string below it."""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            return " ".join(str(after.value.value).split())
        assert child.end_lineno is not None
        assert child.end_col_offset is not None
        comment = self.lines[child.end_lineno - 1][child.end_col_offset :].strip()
        if not comment.startswith("#"):
            return ""
        words = [comment.removeprefix("#").strip()]
        for line in self.lines[child.end_lineno :]:
            if not line.strip().startswith("#  "):
                break
            words.append(line.strip().removeprefix("#").strip())
        return " ".join(words)


def define(thing: Any) -> Definition:
    """Where a class or function is written."""
    thing = inspect.unwrap(thing)
    path = inspect.getsourcefile(thing)
    assert path is not None
    source = Path(path).read_text(encoding="utf-8")
    wanted = thing.__qualname__.split(".")
    node: Any = ast.parse(source)
    for name in wanted:
        (node,) = [n for n in node.body if getattr(n, "name", None) == name][-1:]
    return Definition(thing.__name__, node, tuple(source.splitlines()))


def define_value(package: ModuleType, name: str) -> tuple[str, str]:
    """(the assignment, what stands below it) of a name that is no class or function."""
    assert package.__file__ is not None
    file = Path(package.__file__)
    for path in sorted(file.parent.glob("*.py")) if file.name == "__init__.py" else [file]:
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for child, after in zip(body, [*body[1:], None], strict=True):
            if isinstance(child, ast.Assign) and ast.unparse(child.targets[0]) == name:
                said = ""
                if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                    said = inspect.cleandoc(str(after.value.value))
                return ast.unparse(child), said
    raise LookupError(f"{package.__name__}.{name}")


def is_required(function: Function) -> bool:
    """Whether a subclass has to define it."""
    return "abstractmethod" in _marks(function) or _raises_not_implemented(function)


def kind(function: Function) -> str:
    """What there is to say before a method: "class method", "property" or nothing."""
    found = {"classmethod": "class method", "staticmethod": "static method"}
    found |= {"property": "property", "cached_property": "property"}
    return next((found[mark] for mark in _marks(function) if mark in found), "")


def signature(function: Function, name: str | None = None) -> str:
    """`name(arguments) -> type`, without `self`, broken into lines where it is long."""
    parts = _written(function.args)
    if parts and parts[0] in ("self", "cls"):
        parts = parts[1:]
    name = name or function.name
    returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    if kind(function) == "property":
        return f"{name}: {ast.unparse(function.returns)}" if function.returns else name
    line = f"{name}({', '.join(parts)}){returns}"
    if len(line) <= 96:
        return line
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){returns}"])


def arguments(function: Function) -> dict[str, str]:
    """The arguments by name, with their types; without `self` and `cls`."""
    every = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return {
        a.arg: ast.unparse(a.annotation) if a.annotation else ""
        for a in every
        if a.arg not in ("self", "cls")
    }


def markdown(text: str) -> str:
    """A docstring as Markdown: examples fenced, lists and paragraphs as they are."""
    parts = []
    for part in re.split(r"\n\s*\n", text):
        if part.lstrip().startswith(">>>"):
            code = [re.sub(r"^\s*(>>>|\.\.\.) ?", "", line) for line in part.splitlines()]
            parts.append("\n".join(["```python", *code, "```"]))
        elif part.startswith("    "):
            parts.append("\n".join(["```", textwrap.dedent(part), "```"]))
        else:
            parts.append(part)
    return "\n\n".join(parts)


def _written(found: ast.arguments) -> list[str]:
    """Each argument as it is written, with the marks for positional and keyword-only ones."""
    plain = [*found.posonlyargs, *found.args]
    defaults = [None] * (len(plain) - len(found.defaults)) + list(found.defaults)
    parts = [_argument(a, default) for a, default in zip(plain, defaults, strict=True)]
    if found.posonlyargs:
        parts.insert(len(found.posonlyargs), "/")
    if found.vararg:
        parts.append(f"*{_argument(found.vararg, None)}")
    elif found.kwonlyargs:
        parts.append("*")
    pairs = zip(found.kwonlyargs, found.kw_defaults, strict=True)
    parts += [_argument(a, default) for a, default in pairs]
    return [*parts, f"**{_argument(found.kwarg, None)}"] if found.kwarg else parts


def _argument(found: ast.arg, default: ast.expr | None) -> str:
    text = f"{found.arg}: {ast.unparse(found.annotation)}" if found.annotation else found.arg
    equals = " = " if found.annotation else "="
    return text if default is None else f"{text}{equals}{ast.unparse(default)}"


def _marks(function: Function) -> list[str]:
    return [ast.unparse(mark).rpartition(".")[2] for mark in function.decorator_list]


def _raises_not_implemented(function: Function) -> bool:
    return any(
        isinstance(child, ast.Raise) and child.exc and "NotImplementedError" in ast.unparse(child)
        for child in function.body
    )
