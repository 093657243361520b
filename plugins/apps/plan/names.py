"""Names on a page: where a line may end in them, and what of them may be shown."""

from __future__ import annotations

import re

from markupsafe import Markup

from core.visible import visible


def pieces(name: str) -> list[str]:
    """A name cut behind its dots and underscores, where a line may end."""
    return re.findall(r"[^._]*[._]|[^._]+", name)


def printable(value: object) -> object:
    """Text from a checkpoint without characters that hide, reorder or break what is around it."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return visible(value, keep="")
    return value
