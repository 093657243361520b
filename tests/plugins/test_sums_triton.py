"""Collectives by kernels that write into each other's memory, beside sums in rank order.

Needs TRITON_INTERPRET=1: ranks are processes of one machine, and their memory is shared. On GPUs
`test_sums_gpus` runs the same kernels.
"""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import torch
from torch import Tensor

from core.parallel.groups import ordered_sum
from core.parallel.peers import EMPTY, PeerMemory, tried
from core.testing.kernels import EPS, rms_norm
from core.testing.numbers import assert_close
from tests.peers import on_ranks

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1", allow_module_level=True)

import triton.language as tl

from plugins.kernels.triton.sums import words
from plugins.kernels.triton.sums.launch import Sums, memory
from plugins.kernels.triton.sums.sizes import H200, Limits

LIMITS = Limits(one_shot=1 << 20, two_shot=1 << 21, blocks=8)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def part(rank: int, seed: int, *size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """What one rank has."""
    made = torch.Generator().manual_seed(100 * seed + rank)
    x = torch.randn(size, generator=made)
    x[..., ::7] = -0.0  # the value that nobody may send
    return x.to(dtype)


def parts(ranks: int, seed: int, *size: int, dtype: torch.dtype) -> list[Tensor]:
    return [part(rank, seed, *size, dtype=dtype) for rank in range(ranks)]


def equal(found: Tensor, wanted: Tensor) -> None:
    assert found.dtype == wanted.dtype
    if wanted.dtype == torch.bfloat16:  # the interpreter cuts its last bits off
        torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-6)
    else:
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_sums_of_any_sizes_one_after_the_other(ranks: int) -> None:
    """Blocks that one call has not used are a turn behind, and each rank is slow in turn."""
    sizes = [(5,), (3, 700), (1,), (2, 1024), (1500,), (16,), (4096,)]
    ways = ("one_shot", "two_shot") if ranks != 3 else ("one_shot",)

    def work(peers: PeerMemory) -> list[Tensor]:
        sums, found = Sums(peers, False, LIMITS), []
        for turn, size in enumerate(sizes):
            if turn % ranks == peers.rank:
                time.sleep(0.05)
            x = part(peers.rank, turn, *size, dtype=DTYPES[turn % 3])
            found.append(getattr(sums, ways[turn % len(ways)])(x))
        return found

    found = on_ranks(ranks, memory(ranks, LIMITS), work)
    for turn, size in enumerate(sizes):
        wanted = ordered_sum(parts(ranks, turn, *size, dtype=DTYPES[turn % 3]))
        for mine in found:
            equal(mine[turn], wanted)


def test_every_word_is_taken_and_no_memory_beyond_is_touched() -> None:
    limits = Limits(one_shot=1 << 20, blocks=3)
    room = memory(2, limits)

    def work(peers: PeerMemory) -> Tensor:
        sums = Sums(peers, False, limits)
        for turn in range(5):
            sums.one_shot(part(peers.rank, turn, 2500))
            sums.gather(torch.arange(9, dtype=torch.int32))
        from ctypes import c_int16

        own = (c_int16 * ((room + 4096) // 2)).from_address(int(peers.addresses[peers.rank]))
        return torch.tensor(list(own))

    for left in on_ranks(2, room + 4096, work):
        assert left.eq(EMPTY).all()


@pytest.mark.parametrize("carry", [False, True])
@pytest.mark.parametrize(("ranks", "rows", "size"), [(2, 3, 64), (3, 5, 100), (2, 1, 4096)])
def test_the_sum_with_residual_and_norm(ranks: int, rows: int, size: int, carry: bool) -> None:
    limits = Limits(one_shot=1 << 20, blocks=8)
    dtypes = (torch.float32, torch.bfloat16) if size < 4096 else (torch.bfloat16,)

    def work(peers: PeerMemory) -> list[Any]:
        sums, found = Sums(peers, False, limits), []
        for dtype in dtypes:
            gain, residual = common(rows, size, dtype)
            x = part(peers.rank, 3, rows, size, dtype=dtype)
            for _ in range(2):  # the residual goes on
                out, residual, squares = sums.added(x, residual, gain, EPS, carry)
                found.append((out, residual.clone(), squares))
        return found

    found = on_ranks(ranks, memory(ranks, limits), work)
    for i, dtype in enumerate(dtypes):
        gain, residual = common(rows, size, dtype)
        total = ordered_sum(parts(ranks, 3, rows, size, dtype=dtype))
        for turn in range(2):
            residual = residual + total
            if dtype == torch.bfloat16:
                residual = found[0][2 * i + turn][1]
            for mine in found:
                out, own, squares = mine[2 * i + turn]
                equal(own, residual)
                if carry:
                    exact = residual.double() * gain.double()
                    assert_close(squares[:, 0], residual.double().square().sum(1), torch.float32)
                else:
                    exact = rms_norm(residual, gain, EPS)
                assert_close(out, exact, dtype)


def common(rows: int, size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What all ranks have: the norm's weight, and the residual."""
    made = torch.Generator().manual_seed(9)
    gain = torch.rand(size, generator=made) + 0.5
    return gain.to(dtype), torch.randn(rows, size, generator=made).to(dtype)


def test_words_are_gathered_in_rank_order() -> None:
    def work(peers: PeerMemory) -> Tensor:
        x = torch.arange(-3, 5, dtype=torch.int32).view(2, 4) * 1000 + peers.rank
        return Sums(peers, False, LIMITS).gather(x)

    for found in on_ranks(3, memory(3, LIMITS), work):
        rows = torch.arange(-3, 5).view(2, 4) * 1000
        assert torch.equal(found.long(), torch.stack([rows + r for r in range(3)]))


def test_what_is_too_large_is_left_to_the_library() -> None:
    peers = PeerMemory(0, [0, 0], memory(2, Limits(64, blocks=2)))
    sums = Sums(peers, False, Limits(64, blocks=2))
    assert sums.all_reduce(torch.zeros(17)) is None
    assert sums.all_reduce(torch.zeros(2, dtype=torch.float64)) is None
    assert sums.all_reduce(torch.zeros(0)) is None
    assert sums.gather(torch.zeros(2)) is None
    assert sums.gather(torch.zeros(5000, dtype=torch.int32)) is None
    assert sums.added(torch.zeros(3, 4), torch.zeros(3, 4), torch.ones(4), EPS, False) is None
    assert memory(5) == 0


def test_nobody_waits_for_a_rank_that_is_gone() -> None:
    def work(peers: PeerMemory) -> float:
        if peers.rank:
            time.sleep(1.0)
            peers.stop[0] = 1
            return 0.0
        words.POLLS = tl.constexpr(64)  # the interpreter takes a millisecond for each
        began = time.monotonic()
        Sums(peers, False, LIMITS).one_shot(torch.ones(4))
        return time.monotonic() - began

    assert 0.5 < on_ranks(2, memory(2, LIMITS), work)[0] < 20


def test_the_trial_finds_writes_that_do_not_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.parallel.peers.TRIAL", (1, 33, 5000))

    def good(peers: PeerMemory) -> str:
        return tried(Sums(peers, False, LIMITS), peers)

    assert on_ranks(2, memory(2, LIMITS), good) == ["", ""]

    def bad(peers: PeerMemory) -> str:
        sums = Sums(peers, False, LIMITS)
        right = sums.all_reduce
        sums.all_reduce = lambda x: right(x) + peers.rank * (x == 4)  # type: ignore[method-assign]
        return tried(sums, peers)

    found = on_ranks(2, memory(2, LIMITS), bad)
    assert found == ["", "rank 1: sums over GPUs are wrong"]


def test_a_launch_never_asks_for_more_than_there_is() -> None:
    seen: list[int] = []
    for ranks, limits in H200.items():
        peers = PeerMemory(0, [0] * ranks, memory(ranks))
        sums = Sums(peers, False)
        seen.clear()
        sums._launch = lambda kernel, grid, *_: seen.append(grid[0])  # type: ignore
        for dtype in DTYPES:
            for size in (1, 1000, limits.one_shot, limits.two_shot):
                sums.all_reduce(torch.zeros(size // dtype.itemsize, dtype=dtype))
        assert max(seen) <= limits.blocks
