"""How many pages the cache gets: what the device has left, and what a setting says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from core.errors import UserError
from core.settings.ranges import parse_bytes

if TYPE_CHECKING:
    from core.config import Config

CPU_DEFAULT = 4 << 30  # of a computer that does other things too
SPARE = 256 << 20  # bytes of a GPU that nobody plans for


@dataclass(frozen=True)
class Footprint:
    """Bytes that a rank takes on its GPU beside the cache."""

    weights: int
    step: int  # the largest step, and tables that stay
    graphs: int = 0  # what the runner will capture

    @property
    def total(self) -> int:
        return self.weights + self.step + self.graphs

    def __str__(self) -> str:
        parts = ("weights", self.weights), ("the largest step", self.step), ("graphs", self.graphs)
        return ", ".join(f"{gib(size)} for {name}" for name, size in parts if size)


def affordable_pages(
    config: Config,
    device: torch.device,
    page_bytes: int,
    useful: int,
    footprint: Footprint | None = None,
) -> int:
    """Pages that this rank can hold: set by cache.pages or cache.memory, else what is left.

    `page_bytes`: bytes of one page over all layers of this rank. `useful`: pages that could ever
    be used at once. `footprint`: needed on a GPU when neither setting is given; the weights in it
    are loaded already. UserError when not even one page fits, or more is asked for than there is.
    """
    if config.cache.pages is not None:
        check_room("cache.pages", config.cache.pages * page_bytes, device)
        return config.cache.pages
    if config.cache.memory is not None:
        room = parse_bytes(config.cache.memory)
        origin = "cache.memory"
        check_room(origin, min(room, useful * page_bytes), device)
    elif device.type == "cuda":
        assert footprint is not None
        free, total = torch.cuda.mem_get_info(device)
        share = int(total * config.cache.memory_fraction)
        room = share - footprint.total
        origin = f"cache.memory_fraction is {gib(share)}; less {footprint}, it"
        # other processes may hold what this one would be allowed to take
        left = free - footprint.step - footprint.graphs - SPARE
        if left < room:
            room = left
            origin = f"{device} has {gib(free)} free beside the weights; less {footprint}, it"
    else:
        room = min(CPU_DEFAULT, available_host_memory() // 2 // config.parallel.tensor)
        origin = "the machine's free memory"
    pages = min(room // page_bytes, useful)
    if pages < 1:
        raise UserError(
            f"the cache cannot hold one page: {origin} leaves {room / 2**20:.0f} MiB, "
            f"and a page takes {page_bytes / 2**20:.1f} MiB. Lower cache.page_size, "
            "scheduler.max_num_batched_tokens or scheduler.max_num_seqs, or give the cache more "
            "memory."
        )
    return int(pages)


@contextmanager
def out_of_memory(device: torch.device, what: str, remedy: str) -> Iterator[None]:
    """Turn the want of device memory for `what` into a UserError that says what to do."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        there = ""
        if device.type == "cuda":
            free, total = torch.cuda.mem_get_info(device)
            there = f" ({gib(free)} of {gib(total)} are free)"
        raise UserError(f"{device} has no memory for {what}{there}. {remedy}") from error


def gib(size: int) -> str:
    """Bytes for people: 1.5 GiB."""
    return f"{size / 2**30:.1f} GiB" if abs(size) >= 2**30 else f"{size / 2**20:.0f} MiB"


def check_room(key: str, wanted: int, device: torch.device) -> None:
    """UserError when what a setting asks for is more than a device has free, in bytes."""
    if device.type == "cuda":
        free, place = torch.cuda.mem_get_info(device)[0], str(device)
    else:
        free, place = available_host_memory(), "this machine"
    if wanted > free:
        raise UserError(
            f"{key} asks for {wanted / 2**30:,.1f} GiB, and {place} has {free / 2**30:.1f} GiB "
            f"free. Lower {key}."
        )


def give_back_memory() -> None:
    """What torch keeps for later: else the next engine would find less free than there is."""
    if torch.cuda.is_initialized():
        with suppress(RuntimeError):  # after a fault of the device nothing can be given back
            torch.cuda.empty_cache()


def available_host_memory() -> int:
    """Bytes that this process may still take, by the kernel's estimate and its control group."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found = int(line.split()[1]) * 1024
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and (text := limit.read_text().strip()) != "max":
        found = min(found, max(int(text) - int(used.read_text()), 0))
    return found
