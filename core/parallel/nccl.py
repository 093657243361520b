"""Ranks on GPUs: NCCL, and for small tensors kernels that write into each other's memory."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions, PrefixStore

from core.parallel.collectives import broadcast, finish
from core.parallel.groups import Communicator
from core.parallel.peers import PeerKernels, PeerMemory, Poll, meet, tried
from core.parallel.switches import check_allocator, set_switches

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

log = logging.getLogger("plait")

T = TypeVar("T")


class NcclCommunicator(Communicator):
    """CUDA tensors on the current stream, which must be the same for all collectives.

    Every rank gets the same bits of a sum.
    """

    graphable = True

    def __init__(
        self, store: Store, rank: int, size: int, timeout: float, device: torch.device
    ) -> None:
        check_allocator()
        set_switches()
        self.rank, self.size, self.device = rank, size, device
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=timeout)
        self._group: Any = dist.ProcessGroupNCCL(PrefixStore("nccl", store), rank, size, options)
        self._poll = Poll(PrefixStore("peers", store), rank, size, lambda: self._aborted)
        self._peers: PeerMemory | None = None
        self._aborted = False

    def use(self, kernels: object) -> None:
        """Share memory with the other ranks' GPUs, if the kernel set can make something of it."""
        if self._peers is not None or not isinstance(kernels, PeerKernels):
            return
        nbytes = kernels.peer_bytes(self.size)
        if nbytes == 0:
            return
        fault: PeerMemory | str = meet(self._poll, self.rank, self.size, self.device, nbytes)
        if isinstance(fault, PeerMemory):
            self._peers = fault
            self.sums = kernels.peer_sums(fault)
            with torch.cuda.device(self.device):
                wrong = tried(self.sums, fault)
            fault = self._poll.agreed("tried", wrong)
        if fault:
            self._leave_peers()
            log.warning(
                "GPUs do not write into each other's memory, so NCCL does it all: %s", fault
            )

    def all_reduce(self, x: Tensor) -> Tensor:
        if self.sums is not None and (total := self.sums.all_reduce(x)) is not None:
            return total
        x = x.contiguous()
        finish(self._group.allreduce, [x], _on_this_stream(dist.AllreduceOptions()))
        return x

    def gather_all(self, x: Tensor) -> list[Tensor]:
        return list(self.gathered(x).unbind(0))

    def gathered(self, x: Tensor) -> Tensor:
        if self.sums is not None and x.dtype == torch.int32:
            shards = self.sums.gather(x)
            if shards is not None:
                return shards
        return self._by_nccl(x)

    def all_gather(self, x: Tensor, sizes: Sequence[int] | None = None, dim: int = -1) -> Tensor:
        if sizes is not None and len(set(sizes)) > 1:
            return super().all_gather(x, sizes, dim)
        shards = self._by_nccl(x)
        dim = dim % x.dim()
        return shards.movedim(0, dim).flatten(dim, dim + 1)

    def _by_nccl(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        shards = x.new_empty((self.size, *x.shape))
        options = _on_this_stream(AllgatherOptions())
        finish(self._group._allgather_base, shards, x, options)
        return shards

    def reduce_scatter(self, x: Tensor) -> Tensor:
        if x.shape[0] % self.size:
            return super().reduce_scatter(x)
        part = x.new_empty((x.shape[0] // self.size, *x.shape[1:]))
        options = _on_this_stream(dist.ReduceScatterOptions())
        finish(self._group._reduce_scatter_base, part, x.contiguous(), options)
        return part

    def broadcast_object(self, value: T | None, root: int = 0) -> T:
        """Waits for the device: for the start, and not for steps."""
        return broadcast(self._group, value, self.rank, root, self.device)

    def barrier(self) -> None:
        self._by_nccl(torch.zeros(1, device=self.device))
        torch.cuda.synchronize(self.device)

    def abort(self) -> None:
        # kernels that wait for the rank would run for ever, and the host with them
        self._aborted = True
        if self._peers is not None:
            self._peers.stop[0] = 1
        if self._group is not None:
            self._group.abort()

    def close(self) -> None:
        """Free all that is shared. Drop captured graphs before."""
        group, self._group = self._group, None
        if group is None:
            return
        with suppress(RuntimeError):  # the device may have failed
            torch.cuda.synchronize(self.device)
        self._leave_peers()
        # not shutdown(), which waits until the other ranks come to do the same
        with suppress(RuntimeError):
            group.abort()

    def _leave_peers(self) -> None:
        self.sums = None
        if self._peers is not None:
            self._peers.close()
            self._peers = None


def _on_this_stream(options: Any) -> Any:
    """A collective that is no work of its own stream, and needs no events to meet the others."""
    options.asyncOp = False
    return options
