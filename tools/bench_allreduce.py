"""Time sums over GPUs inside a graph: ours in one shot and in two, and NCCL's.

python -m tools.bench_allreduce              two GPUs, 8 KB to 8 MB of bfloat16, and the fused norm
python -m tools.bench_allreduce --ranks 4

Each figure is the mean over the calls of a replayed graph, the slowest rank's. `GB/s` counts what a
rank must send: of two ranks, the tensor; `%` is the share of --link in one direction. `norm` is the
sum with residual and norm in one kernel, beside a sum and a kernel for the norm.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from core.parallel import connect
from core.parallel.peers import PeerMemory
from core.parallel.switches import set_switches
from core.triton_launch import pdl
from plugins.kernels.triton import norms
from plugins.kernels.triton.sums.launch import Sums, memory
from plugins.kernels.triton.sums.sizes import Limits

DTYPE = torch.bfloat16
SIZES = [1024 << i for i in range(3, 14)]  # bytes: 8 KB to 8 MB
LIMITS = Limits(one_shot=8 << 20, two_shot=8 << 20, blocks=2048)
HIDDEN = 4096
CALLS, REPLAYS = 40, 20  # of a graph, and of graphs


class Wide:
    """A kernel set that takes sums of all sizes."""

    def peer_bytes(self, ranks: int) -> int:
        return memory(ranks, LIMITS)

    def peer_sums(self, peers: PeerMemory) -> Sums:
        return Sums(peers, pdl(peers.device), LIMITS)


class Bench:
    """One rank."""

    def __init__(self, comm: Any, device: torch.device, link: float) -> None:
        self.comm, self.device, self.link, self.sums = comm, device, link, comm.sums

    def time(self, call: Callable[[], Any]) -> float:
        """Microseconds of a call, the slowest rank's."""
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(3):
                call()
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for _ in range(CALLS):
                call()
        graph.replay()
        self.comm.barrier()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(REPLAYS):
            graph.replay()
        end.record()
        torch.cuda.synchronize(self.device)
        own = torch.tensor([1000 * begin.elapsed_time(end) / (CALLS * REPLAYS)], device=self.device)
        slowest = float(torch.cat(self.by_nccl(own)).max())
        del graph
        return slowest

    def by_nccl(self, x: Tensor) -> list[Tensor]:
        return list(self.comm._by_nccl(x).unbind(0))

    def nccl_sum(self, x: Tensor) -> Tensor:
        sums, self.comm.sums = self.comm.sums, None
        try:
            return self.comm.all_reduce(x)
        finally:
            self.comm.sums = sums

    def say(self, *words: object) -> None:
        if self.comm.rank == 0:
            print(*words, flush=True)

    def sums_of_all_sizes(self) -> None:
        ways: dict[str, Callable[[Tensor], Any]] = {}
        if self.sums is not None:
            for block in (1024, 2048, 4096):
                ways[f"one shot {block}"] = lambda x, b=block: self.sums.one_shot(x, b)
            ways["two shots"] = self.sums.two_shot
        ways["NCCL"] = self.nccl_sum
        self.say(f"{'bytes':>9}", *(f"{name:>26}" for name in ways))
        for size in SIZES:
            x = torch.zeros(size // DTYPE.itemsize, dtype=DTYPE, device=self.device)
            row = []
            for name, way in ways.items():
                block = int(name.split()[-1]) if name.startswith("one") else 0
                if block and x.numel() > block * LIMITS.blocks:
                    row.append(f"{'-':>26}")
                    continue
                spent = self.time(lambda way=way, x=x: way(x))
                sent = 2 * (self.comm.size - 1) / self.comm.size * size / spent / 1e3
                row.append(f"{spent:8.2f} us {sent:6.1f} {100 * sent / self.link:5.1f} %")
            self.say(f"{size:9}", *(f"{cell:>26}" for cell in row))

    def norm(self) -> None:
        gain = torch.ones(HIDDEN, dtype=DTYPE, device=self.device)
        self.say(f"\n{'rows':>9}", *(f"{n:>26}" for n in ("fused", "one shot, norm", "NCCL, norm")))
        for rows in (1, 2, 4, 8, 16, 32, 64, 128):
            x = torch.zeros(rows, HIDDEN, dtype=DTYPE, device=self.device)
            residual = torch.zeros_like(x)
            apart = lambda summed, r=residual: norms.add_rms_norm(  # noqa: E731
                summed, r, gain, 1e-6, pdl(self.device)
            )
            ways = [
                lambda x=x, r=residual: self.sums.added(x, r, gain, 1e-6, True),
                lambda x=x, apart=apart: apart(self.sums.one_shot(x)),
                lambda x=x, apart=apart: apart(self.nccl_sum(x)),
            ]
            spent = [self.time(way) for way in ways]
            self.say(f"{rows:9}", *(f"{us:23.2f} us" for us in spent))

    def exchange(self) -> None:
        """Scores and ids of drawn tokens."""
        self.say(f"\n{'rows':>9}{'ours':>26}{'NCCL':>26}")
        for rows in (1, 8, 64, 256):
            found = torch.zeros(2, rows, dtype=torch.int32, device=self.device)
            ours = self.time(lambda found=found: self.sums.gather(found))
            theirs = self.time(lambda found=found: self.comm._by_nccl(found))
            self.say(f"{rows:9}{ours:23.2f} us{theirs:23.2f} us")


def one_rank(rank: int, size: int, store: str, link: float) -> None:
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    comm: Any = connect(dist.FileStore(store, size), rank, size, device, 120)
    comm.use(Wide())
    bench = Bench(comm, device, link)
    if bench.sums is None:
        bench.say("this machine's GPUs do not write into each other's memory: NCCL alone")
    bench.sums_of_all_sizes()
    if bench.sums is not None:
        bench.norm()
        bench.exchange()
    comm.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--link", type=float, default=450.0, help="GB/s in one direction")
    given = parser.parse_args()
    set_switches()  # for the ranks, before they import torch
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(one_rank, (given.ranks, f"{folder}/store", given.link), nprocs=given.ranks)


if __name__ == "__main__":
    main()
