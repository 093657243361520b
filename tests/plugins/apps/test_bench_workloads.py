"""Workloads are the published ones: same ids, same digests, on every machine."""

from __future__ import annotations

import random

import pytest

from core.errors import UserError
from plugins.apps.bench.workloads import STANDARD, workload, workloads

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
    ],
)
def test_a_wrong_name_is_explained(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        workload(name)
