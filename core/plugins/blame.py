"""Whose fault an unexpected exception is: the plugin that its traceback runs through, or ours."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING

from core.importing import cause
from core.visible import visible

if TYPE_CHECKING:
    from types import FrameType

    from core.plugins.discovery import Plugin

OURS = ("core", "plugins", "models")


def verdict(error: BaseException) -> str:
    """A sentence for the end of a traceback."""
    innermost, through = _suspects(error)
    if innermost is not None:
        return (
            f"This is a fault of {innermost}, not of your configuration. It is at "
            f"{_place(error, innermost)}. Tell its authors."
        )
    if through is not None:
        return (
            f"This is a fault of {through}, or of Plait, where it led, from "
            f"{_place(error, through)}. It is not one of your configuration. Tell the plugin's "
            "authors."
        )
    if named := _named():
        return (
            f"It came up in Plait's code, with {' and '.join(named)} in use: try without "
            f"{'it' if len(named) == 1 else 'them'}, then report it."
        )
    return "This is a fault of Plait, not of your configuration. Please report it."


def account(error: BaseException) -> str:
    """The traceback with its verdict, for whoever cannot see the exception itself."""
    return visible(f"{''.join(traceback.format_exception(error))}{verdict(error)}")


def brief(error: BaseException) -> str:
    """The exception in one line, with its place in the code, and the plugin it came through."""
    innermost, through = _suspects(error)
    plugin = innermost or through
    return f"{plugin} failed: {cause(error)}" if plugin else cause(error)


def _named() -> list[str]:
    """The plugins that the configuration names: what they have left behind may crash elsewhere."""
    from core.plugins import current

    return [str(p) for p in current() if p.named and not p.builtin and p.body]


def _suspects(error: BaseException) -> tuple[Plugin | None, Plugin | None]:
    """(the plugin whose code raised, the innermost plugin that the traceback runs through).

    Code that is neither a plugin's nor ours, such as torch's, does what its caller made it do.
    """
    from core.plugins import current

    strangers = [plugin for plugin in current() if not plugin.builtin]
    ours = False
    for frame, _ in _frames(error):
        module = _module(frame)
        if module.partition(".")[0] in OURS:
            ours = True
            continue
        for plugin in strangers:
            if plugin.holds(module):
                return (None if ours else plugin), plugin
    return None, None


def _place(error: BaseException, plugin: Plugin) -> str:
    """The last line of a plugin that the exception came through."""
    return next(
        f"{frame.f_code.co_filename}, line {line}"
        for frame, line in _frames(error)
        if plugin.holds(_module(frame))
    )


def _module(frame: FrameType) -> str:
    name: str = frame.f_globals.get("__name__", "")
    return name


def _frames(error: BaseException | None) -> Iterator[tuple[FrameType, int]]:
    """An exception's frames with their lines, the innermost first, then those of its causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield from reversed(list(traceback.walk_tb(error.__traceback__)))
        error = error.__cause__
