"""What is deprecated: told once, with the release when it ends, at the caller's line."""

from __future__ import annotations

import warnings

import pytest

from core import deprecation
from core.deprecation import PlaitDeprecation, deprecated


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deprecation, "_told", set())
    monkeypatch.setattr(deprecation, "__version__", "0.4.2")


def old() -> None:
    deprecated("old()", ends="0.5", instead="Call new().")


def test_it_is_told_once_with_its_end_and_what_to_use(recwarn) -> None:
    old()
    deprecated("old()", ends="0.5", instead="Call new().")  # at another line
    (warning,) = recwarn
    assert warning.category is PlaitDeprecation
    assert str(warning.message) == "old() is deprecated and goes with Plait 0.5. Call new()."
    assert warning.filename == __file__


def test_two_things_are_two_warnings(recwarn) -> None:
    old()
    deprecated("older()", ends="1.0", instead="Call new().")
    assert len(recwarn) == 2


def test_it_is_shown_without_asking() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.resetwarnings()
        for action, message, category, module, line in DEFAULTS:
            warnings.filterwarnings(action, message, category, module, line, append=True)
        old()
    assert len(caught) == 1


DEFAULTS = [
    ("default", "", DeprecationWarning, "__main__", 0),
    ("ignore", "", DeprecationWarning, "", 0),
    ("ignore", "", PendingDeprecationWarning, "", 0),
    ("ignore", "", ImportWarning, "", 0),
    ("ignore", "", ResourceWarning, "", 0),
]
"""Python's own filters."""


@pytest.mark.parametrize("version", ["0.5.0", "0.5.1", "0.10.0", "1.0.0"])
def test_it_has_to_go_when_its_end_has_come(monkeypatch, version: str) -> None:
    monkeypatch.setattr(deprecation, "__version__", version)
    with pytest.raises(AssertionError, match="take it out"):
        old()
