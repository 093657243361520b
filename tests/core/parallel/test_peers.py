"""How ranks agree on memory that they share, and fall back together where that cannot be."""

from __future__ import annotations

import itertools
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from core.errors import UserError
from core.parallel import RankLost, cuda_ipc, nccl, peers
from core.parallel.nccl import NcclCommunicator
from core.parallel.peers import EMPTY, PeerMemory, Poll, meet
from core.parallel.switches import MULTICAST_OFF, check_allocator, set_switches

CPU = torch.device("cpu")


def on_threads(tmp_path: Path, work: Any, ranks: int = 2) -> list[Any]:
    """Each rank with its own end of one store."""

    def one(rank: int) -> Any:
        store = dist.FileStore(str(tmp_path / "store"), ranks)
        return work(rank, Poll(dist.PrefixStore("p", store), rank, ranks, lambda: False))

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(one, range(ranks)))


def test_all_ranks_hear_the_first_fault(tmp_path: Path) -> None:
    def work(rank: int, poll: Poll) -> Any:
        answers = poll("a question", bytes([rank]))
        faults = ["", f"rank {rank}", "all well"][rank]
        return answers, poll.agreed("one", faults), poll.agreed("none", "")

    for answers, fault, none in on_threads(tmp_path, work, 3):
        assert answers == [b"\0", b"\1", b"\2"]
        assert fault == "rank 1"
        assert none == ""


def test_who_asks_a_rank_that_is_gone_is_told(tmp_path: Path) -> None:
    store = dist.FileStore(str(tmp_path / "store"), 2)
    with pytest.raises(RankLost, match="does not answer about memory"):
        Poll(store, 0, 2, lambda: True)("memory", b"")


class FakeGpus:
    """Memory by number; the handle of an allocation is its number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.numbers = itertools.count(1)
        self.held: set[int] = set()
        self.open: list[int] = []
        self.refuses = False
        monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
        for name in ("take", "give_back", "exported", "opened", "closed"):
            monkeypatch.setattr(cuda_ipc, name, getattr(self, name))
        monkeypatch.setattr(peers, "_as_tensor", lambda *_: torch.zeros(4, dtype=torch.int16))

    def take(self, size: int) -> int:
        address = next(self.numbers)
        self.held.add(address)
        return address

    def give_back(self, address: int) -> None:
        self.held.remove(address)

    def exported(self, address: int) -> bytes:
        return bytes([address])

    def opened(self, handle: bytes) -> int:
        if self.refuses:
            raise cuda_ipc.IpcError("cudaIpcOpenMemHandle: peer access is not supported")
        self.open.append(100 + handle[0])
        return self.open[-1]

    def closed(self, address: int) -> None:
        self.open.remove(address)


def test_every_rank_maps_the_memory_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = FakeGpus(monkeypatch)
    met = on_threads(tmp_path, lambda rank, poll: meet(poll, rank, 3, CPU, 64), 3)
    own = [int(m.addresses[m.rank]) for m in met]
    assert sorted(own) == [1, 2, 3]
    for memory in met:
        others = [100 + address for r, address in enumerate(own) if r != memory.rank]
        assert [int(a) for r, a in enumerate(memory.addresses) if r != memory.rank] == others
        memory.close()
        memory.close()
    assert not gpus.held
    assert not gpus.open


def test_one_rank_that_cannot_map_makes_all_of_them_do_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = FakeGpus(monkeypatch)
    gpus.refuses = True
    met = on_threads(tmp_path, lambda rank, poll: meet(poll, rank, 2, CPU, 64))
    assert met[0] == met[1] == "rank 0: cudaIpcOpenMemHandle: peer access is not supported"
    assert not gpus.held


class Kernels:
    """A kernel set that sums two ones to three on rank 1."""

    def peer_bytes(self, ranks: int) -> int:
        return 64

    def peer_sums(self, memory: PeerMemory) -> Any:
        return Sums(memory.rank == 1)


class Sums:
    def __init__(self, wrong: bool) -> None:
        self.wrong = wrong

    def all_reduce(self, x: Tensor) -> Tensor | None:
        return None if not self.wrong else x * 5

    def gather(self, x: Tensor) -> Tensor | None:
        return None


def test_wrong_sums_are_found_and_left_to_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gpus = FakeGpus(monkeypatch)

    def work(rank: int, poll: Poll) -> Any:
        comm = object.__new__(NcclCommunicator)
        comm.rank, comm.size, comm.device = rank, 2, CPU
        comm._poll, comm._peers = poll, None
        comm.use(object())
        assert comm.sums is None
        comm.use(Kernels())
        return comm.sums, comm._peers

    with caplog.at_level(logging.WARNING, "plait"):
        assert on_threads(tmp_path, work) == [(None, None)] * 2
    assert "so NCCL does it all: rank 1: sums over GPUs are wrong" in caplog.text
    assert not gpus.held
    assert not gpus.open


def test_memory_says_that_nothing_has_come() -> None:
    assert torch.tensor([EMPTY], dtype=torch.int16).view(torch.bfloat16).item() == 0
    assert PeerMemory(0, [1, 2], 8).stop.tolist() == [0]


def test_an_error_of_the_runtime_is_a_sentence() -> None:
    if "libcudart" in Path("/proc/self/maps").read_text():
        pytest.skip("this process has a CUDA runtime")
    with pytest.raises(cuda_ipc.IpcError, match="has loaded no libcudart"):
        cuda_ipc.take(64)


def test_multicast_is_off_whatever_the_environment_says() -> None:
    environment = {"NCCL_NVLS_ENABLE": "1", "NCCL_GRAPH_MIXING_SUPPORT": "1", "OTHER": "x"}
    set_switches(environment)
    assert MULTICAST_OFF == {
        "NCCL_NVLS_ENABLE": "0",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        "NVSHMEM_DISABLE_NVLS": "1",
    }
    assert environment.items() >= MULTICAST_OFF.items()
    assert environment["NCCL_GRAPH_MIXING_SUPPORT"] == "1"
    assert environment["OTHER"] == "x"
    set_switches(fresh := {})
    assert fresh["NCCL_GRAPH_MIXING_SUPPORT"] == "0"


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_memory_that_cannot_be_shared_is_refused(name: str) -> None:
    check_allocator({name: "max_split_size_mb:64,expandable_segments:False"})
    with pytest.raises(UserError, match=rf"{name} says expandable_segments:True"):
        check_allocator({name: "max_split_size_mb:64, expandable_segments: True"})


def test_collectives_of_steps_are_on_the_streams_of_steps() -> None:
    assert nccl._on_this_stream(dist.AllreduceOptions()).asyncOp is False
