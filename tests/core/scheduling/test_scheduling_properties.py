"""The same as the random schedules, found by hypothesis, which shrinks what it finds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from core.testing.traffic import Setting, Traffic
from plugins.scheduling.fcfs import FirstComeFirstServed
from plugins.scheduling.priority import Priority

worlds = st.builds(
    Setting,
    seed=st.integers(0, 1000),
    scheduler=st.sampled_from([FirstComeFirstServed, Priority]),
    page_size=st.integers(1, 5),
    pages=st.integers(4, 20),
    budget=st.integers(3, 16),
    rows=st.integers(1, 6),
    requests=st.integers(1, 8),
    depth=st.integers(0, 3),
    prefix_cache=st.booleans(),
    ids_at_most=st.integers(1, 3),
    options=st.fixed_dictionaries(
        {},
        optional={
            "chunked_prefill": st.booleans(),
            "max_chunk": st.integers(0, 5),
            "watermark": st.floats(0, 0.5),
        },
    ).filter(lambda options: options.get("chunked_prefill", True) or not options.get("max_chunk")),
    aborts=st.sampled_from([0.0, 0.1, 0.5]),
    errors=st.sampled_from([0.0, 0.1]),
    failures=st.sampled_from([0.0, 0.1]),
)


@settings(max_examples=400)
@given(worlds)
def test_every_world_ends_with_the_right_tokens(setting: Setting):
    Traffic(setting).run()
