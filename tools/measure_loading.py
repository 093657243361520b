"""Time the ways in which weights come to a device, beside what the bus and the disk cache give.

    python -m tools.make_checkpoint CHECKPOINT --config models/qwen3/sizes/Qwen3-8B --tokenizer none
    python -m tools.measure_loading CHECKPOINT      # every source, to a GPU where there is one
    python -m tools.measure_loading CHECKPOINT --tensor 2 --sources pread mmap

Files are read once before, so that all sources read the system's cache. With --tensor N it loads
what the last rank does.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch

from core.parallel import Solo
from core.settings import load
from core.setup import read_setup
from core.worker import Worker

PROBE = 256 << 20  # bytes that are copied to measure the bus


def main(argv: list[str] | None = None) -> int:
    """Print a line a load: seconds, and bytes of the checkpoint in a second."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--sources", nargs="+", default=["pread", "mmap", "dummy"])
    parser.add_argument("--tensor", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=2)
    asked = parser.parse_args(argv)
    warm = sum(_read(file) for file in sorted(asked.checkpoint.glob("*.safetensors")))
    print(f"checkpoint: {warm / 1e9:.2f} GB, in the system's cache")
    for source in asked.sources:
        for _ in range(asked.repeat):
            seconds, size, device = time_load(asked, source)
            print(f"{source}: {seconds:.2f} s, {size / seconds / 1e9:.2f} GB/s to {device}")
    if device.type == "cuda":
        print(f"bus: {bus_speed(device) / 1e9:.2f} GB/s from pinned memory")
    return 0


def time_load(asked: argparse.Namespace, source: str) -> tuple[float, int, torch.device]:
    """Load one rank's weights. -> seconds, bytes of its parameters, the device."""
    config = load(
        None,
        [
            f"model.path={asked.checkpoint}",
            f"model.device={asked.device}",
            f"model.weights={source}",
            f"parallel.tensor={asked.tensor}",
            "kernels=torch",
            "attention=sdpa",
            "runner=eager",
        ],
    )
    setup = read_setup(config)
    rank = asked.tensor - 1
    device = None if rank == 0 else _first(config.model.device)
    # at one rank there are guards for nothing, and none is called here
    worker = Worker(config, setup, rank, _Unused(rank, asked.tensor), device)
    seconds = _timed(worker.load, worker.device)
    size = sum(p.numel() * p.element_size() for p in worker.model.parameters())
    return seconds, size, worker.device


class _Unused(Solo):
    """A rank's side of a group that never speaks."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


def _first(device: str) -> torch.device:
    return torch.device("cpu") if device == "cpu" else torch.device("cuda", 0)


def bus_speed(device: torch.device) -> float:
    """Bytes a second from pinned memory to the device, the best of five."""
    host = torch.empty(PROBE, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(PROBE, dtype=torch.uint8, device=device)
    return PROBE / min(_timed(lambda: there.copy_(host), device) for _ in range(5))


def _timed(call: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _read(path: Path) -> int:
    size = 0
    with path.open("rb", buffering=0) as file:
        while block := file.read(64 << 20):
            size += len(block)
    return size


if __name__ == "__main__":
    raise SystemExit(main())
