"""`--list-plugins`: every plugin and every component, who provides it, and whether it is ready."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from core.importing import cause
from core.plugins import Plugins
from core.plugins.discovery import Plugin
from core.registry import Entry, Registries
from core.visible import visible

Row = tuple[str, ...]


def plugin_rows(plugins: Plugins) -> list[Row]:
    """(plugin, provider, state) of each plugin, our own first."""
    ordered = sorted(plugins.found, key=lambda p: (not p.builtin, p.name))
    return [(p.name, p.source, _state(p)) for p in ordered]


def component_rows(registries: Registries) -> list[Row]:
    """(kind, name, provider, state, summary) of each component of each registry."""
    return [
        (registry.kind, entry.name, entry.provider.source, _readiness(entry, twice), entry.summary)
        for registry in registries.all().values()
        for entry in registry.entries()
        for twice in [sum(other.name == entry.name for other in registry.entries()) > 1]
    ]


def show(plugins: Plugins, registries: Registries) -> None:
    """Print both tables: drawn with rich on a terminal, plain text otherwise."""
    _table(("plugin", "provider", "state"), plugin_rows(plugins))
    print()
    _table(("kind", "name", "provider", "state", "summary"), component_rows(registries))


def _state(plugin: Plugin) -> str:
    if plugin.blocked:
        return "blocked"
    if plugin.error:
        misfit = f"; {found}" if (found := plugin.misfit()) else ""
        return f"failed: {cause(plugin.error)}{misfit}"
    return plugin.misfit() or ("named" if plugin.named else "ready")


def _readiness(entry: Entry, twice: bool) -> str:
    if missing := entry.missing():
        return f"needs {', '.join(missing)}"
    return "claimed twice" if twice else "ready"


def _table(titles: Row, rows: Sequence[Row]) -> None:
    shown = [tuple(visible(cell, keep="") for cell in row) for row in rows]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        table = Table(*titles)
        for row in shown:
            table.add_row(*map(escape, row))
        Console().print(table)
        return
    widths = [max(map(len, column)) for column in zip(titles, *shown, strict=True)]
    for row in (tuple(title.upper() for title in titles), *shown):
        print("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())
