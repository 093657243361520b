"""Compiles what graphs are made of before they are captured: on many cores, not one by one."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from core.triton_launch import compiling_ahead

if TYPE_CHECKING:
    from core.interfaces import Step
    from plugins.runners.cuda_graph.by_size import BySize

log = logging.getLogger("plait")

MOST = 16  # threads: a sixth of a kernel's compilation is Python's, which takes turns


@torch.inference_mode()
def compile_ahead(step: Step, graphs: Sequence[BySize[Any]]) -> None:
    """Where Triton's cache knows the kernels of the first size, it is taken to know all.

    Ranks run the same sizes, because they may talk in them.
    """
    first, *others = [partial(of.rehearse, size) for of in graphs for size in of.sizes]
    cores = len(os.sched_getaffinity(0)) // step.comm.size
    threads = min(max(cores, 1), MOST)
    began = time.monotonic()
    with compiling_ahead(threads) as ahead:
        first()
    if step.comm.broadcast_object(ahead.cold):
        with compiling_ahead(threads) as more:
            for other in others:
                other()
        count = len(ahead.seen | more.seen)
        spent = time.monotonic() - began
        log.info("compiled %d variants of kernels, once for this machine, in %.1f s", count, spent)
