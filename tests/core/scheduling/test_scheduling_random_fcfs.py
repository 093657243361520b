"""5,000 random schedules, first come first served: everybody gets the tokens it would get alone."""

from __future__ import annotations

from collections import Counter

import pytest

from core.testing.traffic import SITUATIONS, Setting, Traffic
from plugins.scheduling.fcfs import FirstComeFirstServed

SCHEDULES = 5_000


@pytest.mark.slow
def test_every_request_gets_its_own_tokens_whatever_the_others_do():
    seen: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        setting = Setting.draw(2 * seed, FirstComeFirstServed)
        try:
            seen += Traffic(setting).run()
        except Exception as error:
            error.add_note(str(setting))
            raise
    missing = {name: seen[name] for name in SITUATIONS if seen[name] < SCHEDULES // 50}
    assert not missing, "the traffic did not bring about what it is meant to test"
