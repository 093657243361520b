"""Matching: which rule of a plan a module has. Every module has exactly one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from core.parallel.problems import Problem, fold_numbers, nearest

Pattern = re.Pattern[str]


@cache
def pattern(glob: str) -> Pattern:
    """A name pattern as a regular expression, to be matched in full.

    `*` is one name, `**` one or more, `{a,b}` either; dots are literal. Raises ValueError with a
    clause that says what is malformed.
    """
    expression = ""
    for token in re.split(r"(\*+|\{[^{}]*\})", glob):
        if token == "**":
            expression += r".+"
        elif token == "*":
            expression += r"[^.]+"
        elif token.startswith("*"):
            raise ValueError(f"{token!r} is neither * nor **")
        elif token.startswith("{") and token.endswith("}"):
            expression += (
                "(?:" + "|".join(re.escape(n.strip()) for n in token[1:-1].split(",")) + ")"
            )
        elif "{" in token or "}" in token:
            raise ValueError("a brace is not closed, or nested")
        else:
            expression += re.escape(token)
    return re.compile(expression)


def matches(globs: Iterable[str], name: str) -> bool:
    """Whether any of the patterns matches the whole name."""
    return any(pattern(glob).fullmatch(name) for glob in globs)


def match(keys: Iterable[str], modules: Iterable[str]) -> tuple[dict[str, str], list[Problem]]:
    """`{module: key of its rule}`, and P1 to P4 for keys and modules that do not pair up."""
    problems: list[Problem] = []
    compiled: dict[str, Pattern] = {}
    for key in keys:
        try:
            compiled[key] = pattern(key)
        except ValueError as error:
            problems.append(Problem("P4", f"rule {key!r} is not a pattern: {error}."))
    names = list(modules)
    hits: dict[str, str] = {}
    used: set[str] = set()
    for module in names:
        found = [key for key, expression in compiled.items() if expression.fullmatch(module)]
        used.update(found)
        if len(found) == 1:
            hits[module] = found[0]
        elif found:
            rules = " and ".join(map(repr, found))
            problems.append(Problem("P3", f"{module} is matched by {rules}; keep one."))
        else:
            problems.append(
                Problem("P2", f"{module} owns parameters but no rule matches it; add one.")
            )
    kinds = dict.fromkeys(map(fold_numbers, names))
    for key in compiled:
        if key not in used:
            hint = nearest(key, kinds)
            problems.append(
                Problem("P1", f"rule {key!r} matches no module that owns parameters.{hint}", key)
            )
    return hits, problems
