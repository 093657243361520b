"""What groups of gloo and of NCCL share: doing a collective, and telling all ranks a value."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

from core.parallel.groups import RankLost

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


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
