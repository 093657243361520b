"""For how large a tensor which way is chosen, by the number of ranks; larger ones go by NCCL.

Two ranks send as much either way, so two shots are for more of them. `python -m
tools.bench_allreduce` measures all ways on the GPUs that are there.
"""

from __future__ import annotations

from dataclasses import dataclass

AREA = 16 << 10  # bytes that one rank can send to one block at a time
BLOCK = 1024  # numbers of a block, as long as there are few
LARGE = 4096  # of a large tensor
FEW = 132  # blocks, one for each multiprocessor


@dataclass(frozen=True)
class Limits:
    """The largest tensors, in bytes; a way with 0 is not taken."""

    one_shot: int
    two_shot: int = 0
    blocks: int = 256  # of one kernel, for each of which every rank has memory


H200 = {
    2: Limits(one_shot=8 << 20, blocks=1024),  # at 8 MB still 1.7 times as fast as NCCL
    3: Limits(one_shot=512 << 10),
    4: Limits(one_shot=256 << 10, two_shot=1 << 20),
    8: Limits(one_shot=128 << 10, two_shot=1 << 20),
}


def limits_for(ranks: int) -> Limits | None:
    """None: the library does everything."""
    return H200.get(ranks)


def block_of(count: int) -> int:
    """Numbers of a block, for a tensor of so many."""
    return BLOCK if count <= FEW * BLOCK else LARGE
