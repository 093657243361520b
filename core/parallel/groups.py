"""Groups: what a guard may ask of the other ranks, and ranks that are threads of one process."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor

from core.fusing import Waiting

if TYPE_CHECKING:
    from core.parallel.peers import PeerSums

T = TypeVar("T")


class RankLost(RuntimeError):
    """A collective failed because another rank has gone. Why it has gone is the better story."""


class Communicator(ABC):
    """One rank's side of a group of `size` ranks.

    All ranks make the same calls in the same order. Sums are taken in rank order, so every rank
    gets the same bits, whatever the number of tokens.
    """

    rank: int
    size: int
    graphable: ClassVar[bool] = False  # its collectives on tensors may be captured in a CUDA graph
    sums: PeerSums | None = None  # what a kernel set does for small tensors, if it can

    def use(self, kernels: object) -> None:
        """Let a kernel set take part, if this group has something for it. All ranks call this."""
        return None

    @abstractmethod
    def gather_all(self, x: Tensor) -> list[Tensor]:
        """Every rank's `x`, in rank order; all have the same shape."""

    @abstractmethod
    def broadcast_object(self, value: T | None, root: int = 0) -> T:
        """The root's picklable value, on every rank."""

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over ranks. Half precision is summed in float32. May write to `x`."""
        return ordered_sum(self.gather_all(x))

    def sum_later(self, x: Tensor) -> Tensor:
        """`all_reduce(x)`, which waits (`core.fusing`) if it may be a part of what follows."""
        return self.all_reduce(x) if self.sums is None else PartialSum(x, self)  # type: ignore[return-value]

    def gathered(self, x: Tensor) -> Tensor:
        """Every rank's `x`, in rank order, [ranks, *x.shape]."""
        return torch.stack(self.gather_all(x))

    def all_gather(self, x: Tensor, sizes: Sequence[int] | None = None, dim: int = -1) -> Tensor:
        """Every rank's `x` end to end on `dim`; `sizes` when they differ on it."""
        if sizes is None:
            return torch.cat(self.gather_all(x), dim)
        shards = self.gather_all(padded(x, max(sizes), dim))
        return torch.cat(
            [shard.narrow(dim, 0, n) for shard, n in zip(shards, sizes, strict=True)], dim
        )

    def gather(
        self, x: Tensor, sizes: Sequence[int] | None = None, root: int = 0, dim: int = -1
    ) -> Tensor | None:
        """`all_gather` for one rank alone; None elsewhere."""
        whole = self.all_gather(x, sizes, dim)
        return whole if self.rank == root else None

    def reduce_scatter(self, x: Tensor) -> Tensor:
        """This rank's rows of the sum. The first `rows % size` ranks get one row more."""
        start, stop = rows_of(x.shape[0], self.size, self.rank)
        return self.all_reduce(x)[start:stop]

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self.gather_all(torch.zeros(1))

    def abort(self) -> None:
        """A rank is gone: let no collective wait for it. May be called from any thread."""
        return None

    def close(self) -> None:
        """Leave the group. Not a collective."""
        return None


class PartialSum(Waiting):
    """A sum over ranks that has not been taken yet: each rank has its part."""

    def __init__(self, part: Tensor, comm: Communicator) -> None:
        super().__init__(part, part.shape[-1])
        self.part, self.comm = part, comm

    def compute(self) -> Tensor:
        return self.comm.all_reduce(self.part)


def rows_of(rows: int, size: int, rank: int) -> tuple[int, int]:
    """The rows of `rank` when `rows` are dealt out in order, as evenly as can be."""
    base, extra = divmod(rows, size)
    start = rank * base + min(rank, extra)
    return start, start + base + (rank < extra)


def padded(x: Tensor, length: int, dim: int) -> Tensor:
    """`x`, or a copy with zeros behind it on `dim` up to `length`."""
    missing = length - x.shape[dim]
    if missing == 0:
        return x
    shape = list(x.shape)
    shape[dim] = missing
    return torch.cat([x, x.new_zeros(shape)], dim)


def ordered_sum(shards: Sequence[Tensor]) -> Tensor:
    """The sum of equally shaped tensors, first to last; half precision in float32."""
    first = shards[0]
    wide = torch.float32 if first.dtype in (torch.bfloat16, torch.float16) else first.dtype
    result = first.to(wide, copy=True)
    for shard in shards[1:]:
        result += shard
    return result.to(first.dtype)


class Solo(Communicator):
    """A group of one."""

    rank, size = 0, 1
    graphable = True

    def gather_all(self, x: Tensor) -> list[Tensor]:
        return [x]

    def broadcast_object(self, value: T | None, root: int = 0) -> T:
        assert value is not None
        return value


class ThreadGroup:
    """Ranks that are threads of this process: for tests and for checks of a plan.

    >>> ThreadGroup(2).run(lambda comm: comm.all_reduce(torch.ones(1)))
    [tensor([2.]), tensor([2.])]
    """

    def __init__(self, size: int, timeout: float = 60.0) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=timeout)
        self.slots: list[Any] = [None] * size

    def run(self, work: Callable[[ThreadCommunicator], T]) -> list[T]:
        """Call `work` once per rank, each in its thread; results in rank order.

        The first error of any rank ends all of them and is raised here.
        """
        results: list[Any] = [None] * self.size
        errors: list[BaseException] = []

        def one(rank: int) -> None:
            try:
                results[rank] = work(ThreadCommunicator(self, rank))
            except threading.BrokenBarrierError as error:
                errors.append(error)
            except BaseException as error:
                errors.insert(0, error)
                self.barrier.abort()

        threads = [threading.Thread(target=one, args=(r,), daemon=True) for r in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return results


class ThreadCommunicator(Communicator):
    """One thread's side of a `ThreadGroup`."""

    def __init__(self, group: ThreadGroup, rank: int) -> None:
        self.group, self.rank, self.size = group, rank, group.size

    def exchange(self, value: T) -> list[T]:
        """Every rank's value, in rank order."""
        self.group.slots[self.rank] = value
        self.group.barrier.wait()
        everyone: list[T] = list(self.group.slots)
        self.group.barrier.wait()
        return everyone

    def gather_all(self, x: Tensor) -> list[Tensor]:
        shards = self.exchange(x)
        assert all(shard.shape == x.shape for shard in shards), [s.shape for s in shards]
        return shards

    def broadcast_object(self, value: T | None, root: int = 0) -> T:
        sent = self.exchange(value)[root]
        assert sent is not None
        return sent
