"""What of a request's parameters a rank can read."""

from __future__ import annotations

import sys
import threading
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
import torch

from core import SamplingParams
from core.sampling.sendable import unsendable


class Unreadable:
    """Can be written, and not read."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


class Own:
    """As if the program itself had defined it."""


Own.__module__ = "__main__"
Own.__qualname__ = "Own"


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "Own", Own, raising=False)


@pytest.mark.parametrize(
    "value",
    [1, "a", None, [1.5, {"a": (True,)}], b"x", Fraction(1, 3), Decimal, torch.ones(2)],
    ids=lambda value: type(value).__name__,
)
def test_what_every_process_knows_is_sent(value):
    assert unsendable(SamplingParams(extra_args={"key": value})) is None


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (lambda: 0, "lambda"),
        (threading.Lock(), "lock"),
        (Unreadable(), "no number"),
        (Own(), "Own is defined in the program itself"),
        ([Own], "Own is defined in the program itself"),
    ],
    ids=["lambda", "lock", "unreadable", "own", "own class"],
)
def test_what_a_rank_could_not_read_is_told_of(value, why):
    said = unsendable(SamplingParams(extra_args={"key": value}))
    assert said is not None
    assert said.startswith("extra_args: they cannot be sent: ")
    assert why in said
    assert "\n" not in said
