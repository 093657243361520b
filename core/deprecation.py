"""Tells, once, that something public will go, and in which release."""

from __future__ import annotations

import os
import sys
import warnings

from core import __version__

_HERE = os.path.dirname(__file__)
_told: set[str] = set()


class PlaitDeprecation(FutureWarning):
    """Works now and will not from a named release on. Shown by default, unlike DeprecationWarning.

    `python -W error::FutureWarning` and pytest's `filterwarnings` make it an error.
    """


def deprecated(what: str, *, ends: str, instead: str) -> None:
    """Warn that `what` goes with release `ends`, and what to use `instead`: once in a process.

    The warning points at the innermost line outside of `core`. When `ends` has come, what is
    deprecated has to be taken out: an AssertionError says so to whoever makes the release.

    >>> deprecated("core.layers.Old", ends="0.3", instead="Use core.layers.New.")
    """
    assert _release(__version__) < _release(ends), (
        f"{what} was to go with {ends}, and this is {__version__}: take it out."
    )
    if what in _told:
        return
    _told.add(what)
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        level, frame = level + 1, frame.f_back
    warnings.warn(
        f"{what} is deprecated and goes with Plait {ends}. {instead}",
        PlaitDeprecation,
        stacklevel=level,
    )


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
