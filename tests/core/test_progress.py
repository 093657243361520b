"""What a long start was spent on is told; what was short is not."""

from __future__ import annotations

import logging

import pytest

from core import progress


@pytest.mark.parametrize(("long", "told"), [(0.0, ["did it: 0.0 s"]), (60.0, [])])
def test_only_what_was_long_is_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, long: float, told: list[str]
) -> None:
    monkeypatch.setattr(progress, "LONG", long)
    with caplog.at_level(logging.INFO, "plait"), progress.told_if_slow("did it"):
        pass
    assert [record.getMessage() for record in caplog.records] == told
