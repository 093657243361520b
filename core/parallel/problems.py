"""Problems of a plan: collected everywhere, told all at once, alike ones folded into one line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from core.errors import UserError
from core.visible import visible


@dataclass(frozen=True)
class Problem:
    """One broken check. `code` is P1 to P12; problems with equal `group` are told once."""

    code: str
    text: str
    group: str = ""


def fold_numbers(text: str) -> str:
    """`model.layers.3.mlp` -> `model.layers.*.mlp`: what the layers of a model have in common."""
    return re.sub(r"(?<=\.)\d+(?=[\s.,:;)\]]|$)", "*", text)


def report(problems: Iterable[Problem]) -> str:
    """One line a problem, in the order of the codes; repeats in other layers are counted."""
    lines: dict[tuple[str, str], list[str]] = {}
    for problem in problems:
        group = problem.group or fold_numbers(problem.text)
        lines.setdefault((problem.code, group), []).append(problem.text)
    ordered = sorted(lines.items(), key=lambda item: int(item[0][0][1:]))
    return "\n".join(
        f"{code} {visible(texts[0], keep='')}"
        + (f" ({len(texts) - 1} more like it)" if len(texts) > 1 else "")
        for (code, _), texts in ordered
    )


def raise_problems(problems: Iterable[Problem]) -> None:
    """Raise one `UserError` that tells every problem; nothing when there is none."""
    text = report(problems)
    if text:
        raise UserError(text)


def nearest(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?`, or nothing when no known name is close."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


def listed(names: Iterable[str]) -> str:
    """Names for the end of a sentence, or `none`."""
    return ", ".join(sorted(names)) or "none"


def ranges(sizes: Iterable[int]) -> str:
    """`1 to 4, 6`: ascending whole numbers, runs folded."""
    runs: list[list[int]] = []
    for size in sizes:
        if runs and size == runs[-1][1] + 1:
            runs[-1][1] = size
        else:
            runs.append([size, size])
    return ", ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in runs) or "none"
