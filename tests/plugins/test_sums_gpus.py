"""Collectives by kernels that write into each other's memory, on GPUs, eagerly and in graphs.

`--on cuda`. With one GPU, two processes share it and take turns: slow, and the same kernels.
"""

from __future__ import annotations

import os
import random
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from torch import Tensor

from core.parallel.groups import ordered_sum
from core.parallel.peers import PeerMemory, Poll, meet, tried
from core.testing.kernels import EPS, rms_norm
from core.testing.numbers import assert_close

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("for GPUs", allow_module_level=True)

from plugins.kernels.triton.kernels import TritonKernels
from plugins.kernels.triton.sums.launch import Sums, memory
from plugins.kernels.triton.sums.sizes import H200

LIMITS = replace(H200[2], two_shot=2 << 20)
DTYPES = (torch.bfloat16, torch.float32, torch.float16)


@pytest.fixture(autouse=True)
def _gpus(device: str) -> None:
    if not device.startswith("cuda"):
        pytest.skip("needs --on cuda")


def on_gpus(work: Callable[[PeerMemory], None], tmp_path: Path) -> None:
    """Run `work` on two ranks. Raises what one of them raises."""
    mp.spawn(_rank, (work.__name__, str(tmp_path)), nprocs=2)
    for rank in range(2):
        said = (tmp_path / f"{rank}.txt").read_text()
        assert not said, f"rank {rank}: {said}"


def _rank(rank: int, name: str, folder: str) -> None:
    import torch.distributed as dist

    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    said = ""
    try:
        poll = Poll(dist.FileStore(f"{folder}/store", 2), rank, 2, lambda: False)
        peers = meet(poll, rank, 2, device, memory(2, LIMITS))
        assert isinstance(peers, PeerMemory), peers
        globals()[name](peers)
        poll("end", b"")
        peers.close()
    except BaseException:
        said = traceback.format_exc()
    Path(f"{folder}/{rank}.txt").write_text(said)


def scale() -> int:
    """How much is done: little where two processes share a GPU."""
    return 20 if torch.cuda.device_count() > 1 else 1


def part(rank: int, seed: int, *size: int, dtype: torch.dtype) -> Tensor:
    x = torch.randn(size, generator=torch.Generator().manual_seed(100 * seed + rank))
    x[..., ::7] = -0.0
    return x.to(dtype)


def the_trial(peers: PeerMemory) -> None:
    assert tried(Sums(peers, True, LIMITS), peers) == ""


def random_sums(peers: PeerMemory) -> None:
    sums, rng, asleep = Sums(peers, True, LIMITS), random.Random(1), random.Random(peers.rank)
    for seed in range(10 * scale()):
        dtype = rng.choice(DTYPES)
        size = (rng.randint(1, 64), rng.choice((1, 7, 64, 1000, 4096)))
        way = rng.choice((sums.one_shot, sums.two_shot))
        if asleep.random() < 0.1:
            time.sleep(0.01)
        shards = [part(r, seed, *size, dtype=dtype) for r in range(2)]
        found = way(shards[peers.rank].to(peers.device)).cpu()
        assert torch.equal(found, ordered_sum(shards)), (seed, size, dtype)


def many_in_a_row(peers: PeerMemory) -> None:
    """Nobody waits for the host in between, so ranks run ahead of each other as far as they can."""
    sums = Sums(peers, True, LIMITS)
    x = torch.full((8, 4096), 1.0 + peers.rank, dtype=torch.bfloat16, device=peers.device)
    wrong = torch.zeros((), dtype=torch.int64, device=peers.device)
    for turn in range(100 * scale()):
        total = sums.one_shot(x[: 1 + turn % 8] + turn % 5)
        wrong += (total != 3 + 2 * (turn % 5)).sum()
        if turn % 97 == 13 * peers.rank:
            torch.cuda._sleep(3_000_000)
    assert wrong.item() == 0


def replays(peers: PeerMemory) -> None:
    """All collectives in a graph, beside eager ones."""
    sums, device = Sums(peers, True, LIMITS), peers.device
    x = torch.zeros(5, 4096, dtype=torch.bfloat16, device=device)
    ids = torch.zeros(2, 9, dtype=torch.int32, device=device)
    residual = torch.zeros(5, 4096, dtype=torch.bfloat16, device=device)
    gain = torch.ones(4096, dtype=torch.bfloat16, device=device)

    def step() -> Any:
        total = sums.one_shot(x)
        large = sums.two_shot(x.repeat(30, 1))
        normed = sums.added(x, residual, gain, EPS, False)
        return total, large, normed, sums.gather(ids)

    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        total, large, normed, told = step()
    for turn in range(3 * scale()):
        x.fill_(turn + peers.rank)
        residual.fill_(turn)
        ids.fill_(10 * turn + peers.rank)
        graph.replay()
        assert (total == 2 * turn + 1).all()
        assert (large == 2 * turn + 1).all()
        assert (residual == 3 * turn + 1).all()
        assert_close(normed[0], rms_norm(residual, gain, EPS), torch.bfloat16)
        assert told[:, 0, 0].tolist() == [10 * turn, 10 * turn + 1]
        assert (sums.one_shot(x[:1]) == 2 * turn + 1).all()
    del graph


def large_ones(peers: PeerMemory) -> None:
    """Of as many blocks as there may be, which do not fit beside each other."""
    sums = Sums(peers, True, LIMITS)
    gain = torch.ones(4096, dtype=torch.bfloat16, device=peers.device)
    for rows in (1, 300, LIMITS.blocks):
        shards = [part(r, rows, rows, 4096, dtype=torch.bfloat16) for r in range(2)]
        wanted = ordered_sum(shards)
        mine = shards[peers.rank].to(peers.device)
        for _ in range(2 * scale()):
            total = sums.all_reduce(mine)
            residual = torch.zeros_like(mine)
            assert total is not None
            assert sums.added(mine, residual, gain, EPS, False) is not None
        assert torch.equal(total.cpu(), wanted), rows
        assert torch.equal(residual.cpu(), wanted), rows


def norms(peers: PeerMemory) -> None:
    sums, rng = Sums(peers, True, LIMITS), random.Random(2)
    for seed in range(4 * scale()):
        dtype, size = rng.choice(DTYPES), rng.choice((64, 1024, 2560, 4096))
        rows, carry = rng.randint(1, 64), rng.random() < 0.5
        made = torch.Generator().manual_seed(seed)
        gain = (torch.rand(size, generator=made) + 0.5).to(dtype)
        residual = torch.randn(rows, size, generator=made).to(dtype)
        shards = [part(r, seed, rows, size, dtype=dtype) for r in range(2)]
        mine = shards[peers.rank].to(peers.device)
        own, gains = residual.to(peers.device), gain.to(peers.device)
        found = sums.added(mine, own, gains, EPS, carry)
        assert found is not None
        wanted = residual + ordered_sum(shards)
        assert torch.equal(own.cpu(), wanted)
        exact = wanted.double() * gain.double() if carry else rms_norm(wanted, gain, EPS)
        assert_close(found[0].cpu(), exact, dtype)
        if carry:
            squares = wanted.double().square().sum(1)
            torch.testing.assert_close(found[2][:, 0].cpu().double(), squares, rtol=1e-5, atol=1e-6)


def a_rank_that_is_gone(peers: PeerMemory) -> None:
    if peers.rank == 1:
        time.sleep(3)  # and never sums
        return
    sums = Sums(peers, True, LIMITS)
    timer = threading.Timer(1.0, lambda: peers.stop.fill_(1))
    timer.start()
    began = time.monotonic()
    for _ in range(50):
        sums.one_shot(torch.ones(8, 4096, dtype=torch.bfloat16, device=peers.device))
    torch.cuda.synchronize(peers.device)
    assert 0.5 < time.monotonic() - began < 5


def by_the_kernel_set(peers: PeerMemory) -> None:
    sums = TritonKernels(TritonKernels.Options()).peer_sums(peers)
    x = torch.ones(3, 4096, dtype=torch.bfloat16, device=peers.device)
    total = sums.all_reduce(x)
    assert total is not None
    assert (total == 2).all()


WORK = (
    the_trial, random_sums, many_in_a_row, replays, large_ones, norms, a_rank_that_is_gone,
    by_the_kernel_set,
)  # fmt: skip


@pytest.mark.parametrize("work", WORK, ids=lambda work: work.__name__)
def test_on_two_ranks(work: Any, tmp_path: Path) -> None:
    on_gpus(work, tmp_path)
