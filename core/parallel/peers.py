"""Memory that all ranks of a group may write to, and what kernels may do with it.

Kernels that write their numbers straight into another rank's memory need neither a library nor a
copy, so a sum over ranks can be a part of a kernel that does more. No NVLink multicast is involved:
every rank maps the memory of each other one (`core.parallel.cuda_ipc`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from core.parallel import cuda_ipc
from core.parallel.groups import RankLost

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

EMPTY = -32768  # int16: the bits of -0.0 in half precision
PATIENCE = 600.0  # seconds that ranks wait for each other, who may still load


class PeerMemory:
    """One rank's view: `addresses[r]` is where the memory of rank r lies for this process's device.

    Each rank's memory has `size` bytes, all of them `EMPTY` at the start. When `stop[0]` is not 0,
    kernels must not wait any longer: a rank is gone.
    """

    def __init__(
        self,
        rank: int,
        addresses: Sequence[int],
        size: int,
        device: torch.device | str = "cpu",
        stop: Tensor | None = None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.rank, self.ranks, self.size = rank, len(addresses), size
        self.device = torch.device(device)
        self.addresses = torch.tensor(addresses, dtype=torch.int64, device=device)
        if stop is None:  # of the host, so that any thread can say it while the device is busy
            pin = self.device.type == "cuda"
            stop = torch.zeros(1, dtype=torch.int32, pin_memory=pin)
        self.stop = stop
        self._close = close

    def close(self) -> None:
        """Give the memory back. No kernel may use it any more."""
        self._close()
        self._close = lambda: None


class PeerSums(Protocol):
    """What a kernel set makes of a group's memory: collectives for small tensors.

    All ranks make the same calls in the same order, on one stream. Sums are taken in float32 and in
    rank order: the same bits on every rank.
    """

    def all_reduce(self, x: Tensor) -> Tensor | None:
        """The sum over ranks, in x's shape and dtype; None if it is better left to a library."""

    def gather(self, x: Tensor) -> Tensor | None:
        """x int32 [...] of every rank -> [ranks, ...]; None if it is better left to a library.

        -2147450880 becomes 0: those bits say that nothing has come yet.
        """


@runtime_checkable
class PeerKernels(Protocol):
    """What a kernel set may offer beside `core.interfaces.Kernels`."""

    def peer_bytes(self, ranks: int) -> int:
        """Bytes of memory that it wants of each of so many ranks; 0: it has no use for any."""

    def peer_sums(self, peers: PeerMemory) -> PeerSums:
        """Its collectives."""


class Poll:
    """Answers of all ranks by way of their store, for as long as no rank is known to be gone."""

    def __init__(self, store: Store, rank: int, size: int, gone: Callable[[], bool]) -> None:
        self._store, self._rank, self._size, self._gone = store, rank, size, gone

    def __call__(self, question: str, answer: bytes) -> list[bytes]:
        """What every rank answers, in rank order. RankLost when one does not."""
        keys = [f"{question}/{r}" for r in range(self._size)]
        self._store.set(keys[self._rank], "." + answer.hex())  # a store may take no empty value
        deadline = time.monotonic() + PATIENCE
        while not self._store.check(keys):
            if self._gone() or time.monotonic() > deadline:
                raise RankLost(f"a rank does not answer about {question}")
            time.sleep(0.002)
        return [bytes.fromhex(self._store.get(key)[1:].decode()) for key in keys]

    def agreed(self, question: str, fault: str) -> str:
        """The first fault of any rank; empty if none has one."""
        return next((a.decode() for a in self(question, fault.encode()) if a), "")


def meet(poll: Poll, rank: int, size: int, device: torch.device, nbytes: int) -> PeerMemory | str:
    """Share `nbytes` of every rank's GPU. -> the memory; or, on every rank, why that cannot be."""
    fault, own, others = "", 0, list[int]()
    handle = b""
    try:
        with torch.cuda.device(device):
            own = cuda_ipc.take(nbytes)
            _as_tensor(own, nbytes, device).fill_(EMPTY)
            torch.cuda.synchronize(device)  # before anybody can write to it
            handle = cuda_ipc.exported(own)
    except (RuntimeError, OSError) as error:
        fault = f"rank {rank}: {error}"
    handles = poll("memory", handle)
    addresses = []
    if not fault and all(handles):
        try:
            with torch.cuda.device(device):
                for r, exported in enumerate(handles):
                    if r != rank:
                        others.append(cuda_ipc.opened(exported))
                    addresses.append(own if r == rank else others[-1])
        except (RuntimeError, OSError) as error:
            fault = f"rank {rank}: {error}"

    def close() -> None:
        with torch.cuda.device(device), suppress(RuntimeError):  # the device may have failed
            for address in others:
                cuda_ipc.closed(address)
            if own:
                cuda_ipc.give_back(own)

    if fault := poll.agreed("mapped", fault):
        close()
        return fault
    return PeerMemory(rank, addresses, nbytes, device, close=close)


class _Memory:
    """Memory that torch has not allocated, as other libraries describe theirs."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "data": (address, False),
            "shape": (nbytes // 2,),
            "typestr": "<i2",
            "version": 3,
        }


def _as_tensor(address: int, nbytes: int, device: torch.device) -> Tensor:
    return torch.as_tensor(_Memory(address, nbytes), device=device)


TRIAL = (1, 33, 4096, 70_000)  # numbers in the sums that are tried
TRIAL_SECONDS = 30.0  # in which the other ranks may have to compile


def tried(sums: PeerSums, peers: PeerMemory) -> str:
    """Sum a few numbers over the ranks. -> what is wrong with the result; empty: nothing.

    Machines may let one GPU map another's memory and yet not bring its writes there.
    """
    device, ranks = peers.device, peers.ranks
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    for turn in range(3):
        for count in TRIAL:
            x = torch.arange(count, device=device) % 16 + peers.rank + turn
            total = sums.all_reduce(x.to(torch.bfloat16))
            if total is not None:
                wanted = ranks * (torch.arange(count, device=device) % 16 + turn)
                wanted += ranks * (ranks - 1) // 2
                wrong += (total.float() != wanted.to(torch.bfloat16).float()).sum()
        told = sums.gather(torch.full((2, 3), peers.rank, dtype=torch.int32, device=device))
        if told is not None:
            wrong += (told != torch.arange(ranks, device=device)[:, None, None]).sum()
    if device.type == "cuda":
        done = torch.cuda.Event()
        done.record()
        deadline = time.monotonic() + TRIAL_SECONDS
        while not done.query():
            if time.monotonic() > deadline:
                peers.stop[0] = 1
                done.synchronize()
                return f"rank {peers.rank}: what other GPUs write does not arrive"
            time.sleep(0.001)
    return f"rank {peers.rank}: sums over GPUs are wrong" if int(wrong) else ""
