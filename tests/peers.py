"""Ranks that are forks of this process, whose kernels write into memory that all of them see.

Triton's interpreter runs the kernels, so what is tested is what a GPU runs. Needs
TRITON_INTERPRET=1.
"""

from __future__ import annotations

import io
import os
import traceback
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor

from core.parallel import Communicator
from core.parallel.peers import EMPTY, PeerMemory, PeerSums

PATIENCE = 60.0  # seconds


def on_ranks(ranks: int, size: int, work: Callable[[PeerMemory], Any]) -> list[Any]:
    """Call `work` once a rank, each in its process -> results in rank order.

    `size`: bytes of each rank's memory.
    """
    shared = torch.full((ranks, size // 2), EMPTY, dtype=torch.int16).share_memory_()
    stop = torch.zeros(1, dtype=torch.int32).share_memory_()
    context = get_context("fork")
    ends, processes = [], []
    for rank in range(ranks):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_one, args=(rank, shared, stop, work, theirs))
        process.start()
        theirs.close()
        ends.append(ours)
        processes.append(process)
    results = []
    try:
        for end in ends:
            assert end.poll(PATIENCE), "a rank does not end"
            results.append(torch.load(io.BytesIO(end.recv_bytes()), weights_only=False))
    finally:
        stop[0] = 1
        for process in processes:
            process.join(5)
            process.kill()
    for result in results:
        assert "error" not in result, result["error"]
    return [result["value"] for result in results]


def _one(rank: int, shared: Any, stop: Any, work: Any, end: Any) -> None:
    torch.set_num_threads(1)
    peers = PeerMemory(rank, [part.data_ptr() for part in shared], 2 * shared.shape[1], "cpu", stop)
    try:
        result = {"value": work(peers)}
    except BaseException:
        result = {"error": traceback.format_exc()}
    buffer = io.BytesIO()
    torch.save(result, buffer)
    end.send_bytes(buffer.getvalue())
    end.close()
    os._exit(0)


class PeerCommunicator(Communicator):
    """A group whose collectives are a kernel set's, and nobody else's."""

    def __init__(self, peers: PeerMemory, sums: PeerSums) -> None:
        self.rank, self.size, self.sums = peers.rank, peers.ranks, sums

    def all_reduce(self, x: Tensor) -> Tensor:
        total = self.sums.all_reduce(x)
        assert total is not None, x.shape
        return total

    def gather_all(self, x: Tensor) -> list[Tensor]:
        shards = self.sums.gather(x.contiguous().view(torch.int32))
        assert shards is not None, x.shape
        return list(shards.view(x.dtype))

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        raise NotImplementedError
