"""How this process starts Python programs of Plait, so that they find the code that it runs."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]  # where `core` is


def command(program: str, *words: str) -> list[str]:
    """What runs a module as a program. Give it `module_path()` as PYTHONPATH.

    By itself Python would look for modules in the working directory first, where somebody may have
    a `core.py` of his own.
    """
    return [sys.executable, "-P", "-m", program, *words]


def module_path() -> str:
    """This process's own module path, and `core` is found there even if that was changed since."""
    paths = [path or os.getcwd() for path in sys.path]
    found = PathFinder.find_spec("core", paths)
    if found is None or found.origin is None or Path(found.origin).resolve().parents[1] != HOME:
        paths.insert(0, str(HOME))
    return os.pathsep.join(paths)
