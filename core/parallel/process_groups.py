"""Process groups: ranks that are processes. Those of a CPU talk by gloo, those of GPUs by NCCL."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from core.errors import UserError
from core.parallel.collectives import broadcast, finish
from core.parallel.groups import Communicator, Solo

if TYPE_CHECKING:
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
