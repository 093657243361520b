"""What the compiler makes of sums over ranks for Hopper. Needs Triton, and no GPU."""

from __future__ import annotations

import os
import re

import pytest
import torch

triton = pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)

# ruff: noqa: E402
from core.parallel.peers import PeerMemory
from plugins.kernels.triton.sums.launch import Sums, memory
from plugins.kernels.triton.sums.sizes import Limits
from tests.hopper import SHARED, Compiled, Compiling, meta

LIMITS = Limits(one_shot=1 << 20, two_shot=1 << 21, blocks=512)
CASES = {
    "one shot": lambda sums: sums.one_shot(meta(4096)),
    "one shot, large": lambda sums: sums.one_shot(meta(400_000)),
    "one shot, float32": lambda sums: sums.one_shot(meta(4096, dtype=torch.float32)),
    "two shots": lambda sums: sums.two_shot(meta(8192)),
    "gather": lambda sums: sums.gather(meta(2, 8, dtype=torch.int32)),
    "norm": lambda sums: sums.added(meta(8, 4096), meta(8, 4096), meta(4096), 1e-6, True),
    "norm apart": lambda sums: sums.added(meta(3, 2560), meta(3, 2560), meta(2560), 1e-6, False),
}


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> Compiling:
    return Compiling(monkeypatch)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_nothing_is_touched_before_the_wait_and_words_go_16_bytes_at_a_time(
    compiling: Compiling, case: str, ranks: int
) -> None:
    stop = meta(1, dtype=torch.int32)
    peers = PeerMemory(1, [0] * ranks, memory(ranks, LIMITS), "meta", stop)
    CASES[case](Sums(peers, True, LIMITS))
    one: Compiled = compiling.last()
    read, written = one.early()
    assert one.starts_its_successor
    assert read <= {"gain"}
    assert ("gain" in read) == case.startswith("norm")
    assert not written
    assert one.shared <= SHARED
    assert "multimem" not in one.ptx
    after = one.ptx.partition("griddepcontrol.wait")[2]
    narrow = re.findall(r"(?:ld\.volatile|st)\.global\.(?:v2\.)?b(?:16|32|64) \[? ?\{?[^;]*", after)
    # turns, the stop word, sums of squares: one number each; all else is wide
    assert len(narrow) <= 3 * ranks, narrow
    polls = re.findall(r"ld\.volatile\.global\.v4\.b32", after)
    sends = re.findall(r"st\.global\.v4\.b32", after)
    assert len(polls) >= 2 * (ranks - 1), "before the loop, and in it"
    assert len(sends) >= 2 * (ranks - 1), "to each other rank, and EMPTY behind each"
