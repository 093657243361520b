"""Writes the tables of docs/configuration.md from the dataclasses: after a change of a setting."""

from __future__ import annotations

from pathlib import Path

from core import explain, plugins

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"
MARK = "<!-- Everything below is made by"


def written(page: str) -> str:
    """The page with its tables renewed."""
    above, mark, below = page.partition(MARK)
    assert mark, page
    return above + mark + below.partition("\n")[0] + "\n\n" + explain.reference()


if __name__ == "__main__":
    plugins.load()
    PAGE.write_text(written(PAGE.read_text()))
