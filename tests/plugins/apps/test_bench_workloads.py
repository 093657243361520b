"""Workloads are the published ones: same ids, same digests, on every machine."""

from __future__ import annotations

import math
import random
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from core.errors import UserError
from plugins.apps.bench.workloads import KINDS, LARGEST_ID, STANDARD, workload, workloads

# name, requests, prompt tokens, output tokens, tokens shared, digest: as other engines' runs of
# the same workloads report them
PUBLISHED = [
    ("nanobench:0", 256, 142827, 133966, 0, "28ed790a25d2"),
    ("nanobench:1", 256, 149935, 156222, 0, "ed936aa37ce0"),
    ("nanobench:3:16:164:132", 16, 2179, 1836, 0, "f3bb38d697d6"),
    ("decode:1:128:256:11", 1, 128, 256, 0, "b9351fe711ec"),
    ("decode:8:128:256:12", 8, 1024, 2048, 0, "6977e4b11cf0"),
    ("decode:64:128:256:11", 64, 8192, 16384, 0, "488387bf0b53"),
    ("prefill:64:2048:21", 64, 131072, 64, 0, "c7494fa0e014"),
    ("shared_prefix:64:2048:128:64:31:1", 64, 139264, 4096, 129024, "3600299c4a2d"),
    ("shared_prefix:64:2048:128:64:32:8", 64, 139264, 4096, 114688, "09a01d6d3328"),
    ("mixed:128:16:41:20", 128, 107016, 16101, 0, "fbfb46a434a9"),
]


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row[0])
def test_ids_are_the_published_ones(row: tuple[str, int, int, int, int, str]) -> None:
    work = workload(row[0])

    found = (work.name, len(work.items), work.prompt_tokens, work.output_tokens, work.shared)
    assert (*found, work.digest()) == row


def test_nanobench_draws_as_the_script_that_it_is_named_after() -> None:
    random.seed(7)
    prompts = [
        [random.randint(0, 10000) for _ in range(random.randint(100, 120))] for _ in range(5)
    ]
    outputs = [random.randint(100, 140) for _ in range(5)]

    work = workload("nanobench:7:5:120:140")

    assert [item.prompt for item in work.items] == prompts
    assert [item.output for item in work.items] == outputs


def test_uniform_stays_between_its_bounds() -> None:
    work = workload("uniform:64:16:32:16:256:3")

    assert {16 <= len(i.prompt) <= 32 and 16 <= i.output <= 256 for i in work.items} == {True}
    assert len({i.output for i in work.items}) > 30


def test_arrivals_of_mixed_follow_the_rate() -> None:
    work = workload("mixed:400:10")

    arrivals = [item.arrival for item in work.items]
    assert work.arrives
    assert arrivals == sorted(arrivals)
    assert 30 < arrivals[-1] < 50  # 400 at 10 a second


def test_groups_share_their_prefix_and_nothing_else() -> None:
    items = workload("shared_prefix:6:32:4:2:5:2").items

    assert items[0].prompt[:32] == items[2].prompt[:32] != items[1].prompt[:32]
    assert len({tuple(item.prompt) for item in items}) == 6


def test_names_rebuild_what_they_name() -> None:
    for work in workloads(STANDARD):
        assert workload(work.name).name == work.name


def test_standard_stands_for_the_standard_set() -> None:
    assert [w.name for w in workloads(["decode:1", "standard"])] == [
        "decode:1:128:256:11",
        *STANDARD,
    ]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nanobench2:1", "Kinds: nanobench, decode,"),
        ("decode", "decode:batch:tokens_in:tokens_out:seed"),
        ("decode:x", "decode:batch:tokens_in:tokens_out:seed"),
        ("decode:1:2:3:4:5", "decode:batch:tokens_in:tokens_out:seed"),
        ("decode:0", "has no requests"),
        ("decode:1:0:5", "no prompts of 0 to 0 tokens"),
        ("nanobench:0:4:50", "no prompts of 100 to 50 tokens"),
        ("uniform:4:5:9:8:7", "no answers of 8 to 7 tokens"),
        ("prefill:4:8.5", "length is '8.5', and must be a whole number"),
        ("prefill:60000:2048", "more than 100,000,000 tokens"),
        ("mixed:8:0", "0 requests a second do not come"),
        ("mixed:8:4:1:101", "101 percent"),
        ("shared_prefix:4:8:8:8:1:0", "4 requests cannot be 0 groups"),
        ("shared_prefix:4:8:-1", "less than no tokens"),
    ],
)
def test_a_wrong_name_is_explained(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        workload(name)


NUMBERS = st.one_of(
    st.integers(-3, 130).map(str),
    st.sampled_from(["1e-7", "0.01", "1e400", "inf", "nan", "16.0", "", "x", "1_0", "9" * 20]),
    st.floats().map(str),
)
NAMES = st.builds(
    lambda kind, numbers: ":".join([kind, *numbers]),
    st.sampled_from([*KINDS]),
    st.lists(NUMBERS, max_size=7),
)


@settings(max_examples=300)
@given(st.one_of(NAMES, st.text(max_size=20)))
@example("mixed:8:0")
@example("mixed:8:0.0001")  # whose arrivals, in microseconds, do not fit 32 bits
@example("mixed:6:16.1234567")
@example("mixed:6:1e-05")
@example("mixed:6:5e-324")
@example("shared_prefix:4:8:8:8:1:0")
@example("shared_prefix:4:8:8:8:1:-1")
@example("uniform:3:-5:4:1:1")
def test_any_text_names_a_workload_or_is_refused(name: str) -> None:
    with mock.patch("plugins.apps.bench.workloads.MOST_TOKENS", 30_000):  # for quick draws
        try:
            work = workload(name)
        except UserError:
            return
        moments = [0.0, *(item.arrival for item in work.items)]
        ids = [token for item in work.items for token in item.prompt]
        assert all(item.prompt and item.output > 0 for item in work.items)
        assert moments == sorted(moments)
        assert math.isfinite(moments[-1])
        assert 0 <= min(ids) <= max(ids) <= LARGEST_ID
        assert work.name.split(":")[0] == name.split(":")[0]
        assert workload(work.name).digest() == work.digest()


def test_a_list_of_no_workloads_is_refused() -> None:
    with pytest.raises(UserError, match="no workload is named"):
        workloads([])
