"""What the kit wants of a scheduler's counters is what the interface says."""

from __future__ import annotations

import re

from core.interfaces import Scheduler
from core.testing.traffic import COUNTERS


def test_the_interface_names_every_counter() -> None:
    words = re.findall(r"\w+", Scheduler.statistics.__doc__ or "")

    assert [name for name in COUNTERS if name not in words] == []
