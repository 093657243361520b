"""Time the small kernels on the GPU, beside their twins and beside the memory's bandwidth.

python -m tools.bench_kernels                     every operation
python -m tools.bench_kernels rope draw           those whose name begins so
python -m tools.bench_kernels --set torch         another kernel set

Each figure is the median over replays of a CUDA graph with many launches, which take turns on
copies of the data that together exceed the L2 cache where the data of one launch is large. `host`
is what one call costs the CPU, `%` the share of --bandwidth that the bytes make, which are those
that an operation must read and write.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from core.plugins import load
from core.registry import registries
from core.sampling.params import SamplingParams
from core.sampling.rows import SampleRows
from core.testing.kernels import HeadsCase
from core.testing.sampling import make_rows
from core.worker import batching
from plugins.sampling.truncation import floors

DTYPE = torch.bfloat16
VOCAB = 151_936
MODELS = {"0.6B": (1024, 3072, 16, 8), "8B": (4096, 12288, 32, 8)}
CACHES = 160 << 20  # bytes: more than twice the L2 cache
MOST_COPIES = 64
LAUNCHES = 64  # of a graph, at least


class Case(NamedTuple):
    """One operation on one shape; `make(copy)` gives it data of its own."""

    name: str
    shape: str
    bytes: int
    make: Callable[[int], Callable[[Any], Any]]  # -> what a kernel set is called with


def normal(*size: int, seed: int, device: str) -> Tensor:
    made = torch.Generator(device).manual_seed(seed)
    return torch.randn(*size, generator=made, device=device, dtype=DTYPE)


def layer_cases(device: str, counts: Sequence[int]) -> Iterator[Case]:
    for model, (size, inner, heads, kv_heads) in MODELS.items():
        for count in counts:
            shape = f"{model} T {count}"

            def norm(copy: int, n: int = count, size: int = size) -> Callable[[Any], Any]:
                x = normal(n, size, seed=copy, device=device)
                weight = normal(size, seed=9, device=device)
                return lambda ours: ours.rms_norm(x, weight, 1e-6)

            def add(copy: int, n: int = count, size: int = size) -> Callable[[Any], Any]:
                x, residual = (normal(n, size, seed=copy + i, device=device) for i in (0, 1))
                weight = normal(size, seed=9, device=device) * 0.01  # sums must not grow
                return lambda ours: ours.add_rms_norm(x, residual, weight, 1e-6)

            def silu(copy: int, n: int = count, size: int = inner) -> Callable[[Any], Any]:
                x = normal(n, 2 * size, seed=copy, device=device)
                return lambda ours: ours.silu_mul(x)

            def rope(
                copy: int, n: int = count, heads: int = heads, kv_heads: int = kv_heads
            ) -> Callable[[Any], Any]:
                case = HeadsCase(n, heads=heads, kv_heads=kv_heads, head_dim=128, dtype=DTYPE,
                                 page_size=64, device=device, seed=copy)  # fmt: skip
                norms = (case.weights[0], case.weights[1], 1e-6)
                return lambda ours: ours.rope_store(
                    case.q, case.k, case.v, norms, case.rope, case.positions, case.cache, case.slots
                )

            yield Case("rms_norm", shape, 4 * count * size, norm)
            yield Case("add_rms_norm", shape, 8 * count * size, add)
            yield Case("silu_mul", shape, 6 * count * inner, silu)
            yield Case("rope_store", shape, 4 * count * 128 * (heads + 3 * kv_heads), rope)


def sampling_cases(device: str, counts: Sequence[int]) -> Iterator[Case]:
    wishes = {
        "greedy": {"temperature": 0.0},
        "T 0.6": {"temperature": 0.6},
        "k 20 p 0.95": {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
        "k 1000": {"temperature": 0.6, "top_k": 1000},
        "p 0.95, peaked": {"temperature": 0.6, "top_p": 0.95},
        "p 0.95, flat": {"temperature": 1.0, "top_p": 0.95},
        "min_p 0.05": {"temperature": 0.6, "min_p": 0.05},
    }
    for count in counts:
        for what, wish in wishes.items():
            cut = len(wish) > 1
            spread = 1.0 if "flat" in what else 4.0

            def make(
                copy: int, n: int = count, wish: Any = wish, cut: bool = cut, spread: float = spread
            ) -> Callable[[Any], Any]:
                logits = normal(n, VOCAB, seed=copy, device=device) * spread
                params = [SamplingParams(seed=s, **wish) for s in range(n)]
                rows = make_rows(params, VOCAB, positions=range(n), device=device)
                rows.table.kernels = None
                return lambda ours: _sampled(ours, logits, rows, cut)

            yield Case(
                "draw" if not cut else "floors", f"S {count} {what}", 2 * count * VOCAB, make
            )


def _sampled(ours: Any, logits: Tensor, rows: SampleRows, cut: bool) -> Tensor:
    where = rows.table.columns, rows.index
    if hasattr(ours, "draw"):
        if cut:
            return ours.floors(logits, *where)
        return ours.draw(logits, *where, rows.positions, None)
    return floors(logits.float(), rows) if cut else rows.draw(logits)


def input_cases(device: str) -> Iterator[Case]:
    steps = {"256 decodes": [(1000, 1)] * 256, "8 prompts": [(0, 1024)] * 8,
             "mixed": [(1000, 1)] * 200 + [(0, 8000)]}  # fmt: skip
    for what, requests in steps.items():

        def make(copy: int, requests: Sequence[tuple[int, int]] = requests) -> Callable[[Any], Any]:
            starts, counts = torch.tensor(requests, dtype=torch.int32).unbind(1)
            ends = torch.cat((torch.zeros(1, dtype=torch.int32), counts.cumsum(0).int()))
            given = {
                "rows": torch.arange(len(requests), dtype=torch.int32, device=device),
                "starts": starts.contiguous().to(device),
                "query_start": ends.to(device),
                "history": torch.zeros(256, 8200, dtype=torch.int32, device=device),
                "page_table": torch.zeros(256, 130, dtype=torch.int32, device=device),
                "page_size": 64,
                "total": int(ends[-1]),
                "longest": int(counts.max()),
                "width": -(-int((starts + counts).max()) // 64),
            }
            return lambda ours: (
                ours.derive if hasattr(ours, "derive") else batching.derive
            )(**given)  # fmt: skip

        yield Case("derive", what, sum(28 * n for _, n in requests), make)


def device_us(calls: Sequence[Callable[[], Any]], replays: int = 20, graph: bool = True) -> float:
    """Median microseconds of one call, where each of them has its turn.

    With `graph` by replays of a graph, else by events around eager calls: for what waits.
    """
    launches = max(LAUNCHES, len(calls)) if graph else len(calls)

    def run() -> None:
        for i in range(launches):
            calls[i % len(calls)]()

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls[:3]:
            call()
        stream.synchronize()
        if graph:
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured, stream=stream):
                run()
            run = captured.replay
            run()
        times = []
        for _ in range(replays):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / launches)
    return statistics.median(times)


def host_us(call: Callable[[], Any], times: int = 50) -> float:
    """Microseconds of the CPU a call, with the device's queue empty before."""
    found = []
    for _ in range(5):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(times):
            call()
        found.append((time.perf_counter() - begin) / times * 1e6)
    torch.cuda.synchronize()
    return min(found)


@torch.inference_mode()
def measured(case: Case, sets: Sequence[Any], bandwidth: float) -> str:
    """A line of the table."""
    copies = max(1, min(MOST_COPIES, CACHES // max(case.bytes, 1)))
    data = [case.make(copy) for copy in range(copies)]
    line = f"{case.name:13}{case.shape:24}{case.bytes / 1e6:9.2f} MB"
    for ours in sets:
        calls = [lambda one=one, ours=ours: one(ours) for one in data]
        # the twin of top_p waits for the device
        us = device_us(calls, graph=case.name != "floors" or hasattr(ours, "floors"))
        share = case.bytes / (us * 1e-6) / (bandwidth * 1e12)
        line += f"{us:10.2f} us {100 * share:4.0f} % host {host_us(calls[0]):6.1f} us |"
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="operations, by the beginnings of their names")
    parser.add_argument("--set", default="triton", help="the kernel set to measure")
    parser.add_argument("--twin", default="torch", help="the one beside it; none: nothing")
    parser.add_argument("--bandwidth", type=float, default=4.3, help="TB/s of this device's memory")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 8, 64, 256, 2048, 16384])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64, 256])
    asked = parser.parse_args()
    load()
    sets = []
    for name in (asked.set, asked.twin):
        if name != "none":
            cls = registries.kernels.get(name)
            sets.append(cls(cls.Options()))
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; {asked.set} | {asked.twin}")
    for case in (
        *layer_cases("cuda", asked.tokens),
        *sampling_cases("cuda", asked.rows),
        *input_cases("cuda"),
    ):
        if not asked.names or case.name.startswith(tuple(asked.names)):
            print(measured(case, sets, asked.bandwidth), flush=True)


if __name__ == "__main__":
    main()
