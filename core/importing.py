"""Imports by path, without importing to find out, and with a sentence when one fails."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Iterable
from importlib import metadata
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from core.errors import UserError
from core.visible import visible

_HERE = str(Path(__file__).parent)


def load_path(path: str) -> Any:
    """Import "package.module:attribute", or "package.module" alone."""
    module, _, attribute = path.partition(":")
    found: Any = importlib.import_module(module)
    for name in filter(None, attribute.split(".")):
        found = getattr(found, name)
    return found


def installed(name: str) -> bool:
    """Whether `name`, such as "flash_attn.cute", could be imported. Imports nothing."""
    top, *rest = name.split(".")
    try:
        spec = find_spec(top)
    except ValueError:  # a module put into sys.modules by hand has no spec
        return True
    for part in rest:
        # find_spec on a dotted name would import the parent, which may be heavy
        if spec is None or spec.submodule_search_locations is None:
            return False
        spec = PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations)
    return spec is not None


def extra_with(needs: Iterable[str]) -> str | None:
    """The extra of Plait that installs these needs, each "a" or "a or b"; None if none has all.

    Packages and what is imported from them are taken to have one name, but for "-" and "_".
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    try:
        about = metadata.metadata("plait")
    except metadata.PackageNotFoundError:  # a checkout that nobody installed
        return None
    wanted = [{canonicalize_name(n.split(".")[0]) for n in need.split(" or ")} for need in needs]
    listed = [Requirement(line) for line in about.get_all("Requires-Dist") or []]
    for extra in about.get_all("Provides-Extra") or []:
        brought = {
            canonicalize_name(found.name)
            for found in listed
            if found.marker is not None and found.marker.evaluate({"extra": extra})
        }
        if all(names & brought for names in wanted):
            return str(extra)
    return None


def cause(error: BaseException) -> str:
    """An exception in one line, with the place in the code that it came from."""
    try:
        text = visible(" ".join(str(error).split()))
    except Exception:  # a stranger's exception, whose own __str__ fails
        text = ""
    if isinstance(error, UserError):
        return text
    text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, SyntaxError):  # names its own place
        return text
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        machinery = frame.filename.startswith(("<frozen", importlib.__path__[0], _HERE))
        if not machinery:
            return f"{text} ({frame.filename}, line {frame.lineno})"
    return text
