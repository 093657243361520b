"""Process groups: ranks that are processes. Those of a CPU talk by gloo, those of GPUs by NCCL."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from core.errors import UserError
from core.parallel.groups import Communicator, RankLost, Solo

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._C._distributed_c10d import Store

T = TypeVar("T")


def connect(
    store: Store,
    rank: int,
    size: int,
    device: torch.device | str,
    timeout: float = 600.0,
    address: str | None = None,
) -> Communicator:
    """Join the group of `size` ranks that meet in `store`, for tensors on `device`.

    The group belongs to the caller: torch's default group is not touched, so several engines can
    live in one process. Give each group a store (or a `PrefixStore`) of its own. `timeout` is in
    seconds; `address` is the host's own address for gloo, where the default is wrong.
    """
    device = torch.device(device)
    if size == 1:
        return Solo()
    if device.type == "cpu":
        return GlooCommunicator(store, rank, size, timeout, address)
    if device.type == "cuda" and dist.is_nccl_available():
        from core.parallel.nccl import NcclCommunicator

        return NcclCommunicator(store, rank, size, timeout, device)
    raise UserError(f"There is no communication library for tensor parallel on {device}.")


class GlooCommunicator(Communicator):
    """CPU tensors. Shards are gathered and summed in rank order: the same bits on every rank."""

    def __init__(
        self, store: Store, rank: int, size: int, timeout: float, address: str | None
    ) -> None:
        self.rank, self.size = rank, size
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        options._timeout = timedelta(seconds=timeout)
        options._devices = [
            gloo.create_device(hostname=address) if address else gloo.create_default_device()
        ]
        self._group: Any = gloo(store, rank, size, options)

    def gather_all(self, x: Tensor) -> list[Tensor]:
        x = x.contiguous()
        shards = [torch.empty_like(x) for _ in range(self.size)]
        finish(self._group.allgather, [shards], [x])
        return shards

    def broadcast_object(self, value: T | None, root: int = 0) -> T:
        return broadcast(self._group, value, self.rank, root, torch.device("cpu"))

    def close(self) -> None:
        self._group = None


def finish(collective: Callable[..., Any], *given: Any) -> None:
    """Do a collective: on a CPU until it is done, on a GPU its stream waits, and not the host."""
    try:
        work = collective(*given)
        if work is not None:  # NCCL's on the current stream is none, from PyTorch 2.11 on
            work.wait()
    except RuntimeError as error:
        del collective  # who keeps the traceback would keep the group, and its sockets
        work = None
        reason = str(error).partition("]")[2].strip() or str(error)
        raise RankLost(f"a collective failed: {reason.splitlines()[0]}") from error


def broadcast(group: Any, value: T | None, rank: int, root: int, device: torch.device) -> T:
    """A picklable value from `root`, sent as its length and its bytes."""
    payload = pickle.dumps(value) if rank == root else b""
    length = torch.tensor([len(payload)], dtype=torch.int64, device=device)
    options = dist.BroadcastOptions()
    options.rootRank = root
    options.rootTensor = 0
    finish(group.broadcast, [length], options)
    if rank == root:
        data = torch.frombuffer(bytearray(payload), dtype=torch.uint8).to(device)
    else:
        data = torch.empty(int(length.item()), dtype=torch.uint8, device=device)
    finish(group.broadcast, [data], options)
    received: T = pickle.loads(data.cpu().numpy().tobytes())
    return received
