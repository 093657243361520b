"""Measures what a rank takes on its GPU, by running the largest steps before there is a cache."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from core.sampling.params import SamplingParams
from core.types import Admission, Limits, StepPlan
from core.worker.memory import Footprint

if TYPE_CHECKING:
    from core.interfaces import Sampler
    from core.types import Ints
    from core.worker import Worker

LONG = 4096  # tokens before a decoded one; of one request more, of all it would only take time

DEMANDING = SamplingParams(
    temperature=0.7,
    top_p=0.9,
    min_p=0.01,
    repetition_penalty=1.1,
    frequency_penalty=0.1,
    logprobs=1,
    max_tokens=1,
)
PLAIN = SamplingParams(max_tokens=1)


def measure(worker: Worker, limits: Limits, reserved: int) -> Footprint:
    """What a worker with loaded weights needs for steps within `limits`.

    `reserved`: bytes that torch held on the device before the weights were there. Other processes
    may take or free memory meanwhile: all but what libraries take for themselves is counted by
    torch. The worker is as before when this returns.
    """
    device = worker.device
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    weights = torch.cuda.memory_reserved(device) - reserved
    outside = _outside(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_reserved(device)
    worker.assemble(limits)
    for plan in largest_steps(limits, worker.sampler):
        worker.launch(plan, eager=True).result()
    torch.cuda.synchronize(device)
    step = torch.cuda.max_memory_reserved(device) - before
    torch.cuda.empty_cache()
    step += max(_outside(device) - outside, 0)  # kernels, workspaces of libraries
    graphs = worker.runner.reserve(worker, limits)
    worker.runner.close()
    worker.disassemble()
    gc.collect()
    torch.cuda.empty_cache()
    return Footprint(weights, step, graphs)


def _outside(device: torch.device) -> int:
    """Bytes in use on the device that this process's torch does not account for."""
    free, total = torch.cuda.mem_get_info(device)
    return total - free - torch.cuda.memory_reserved(device)


def largest_steps(limits: Limits, sampler: Sampler) -> Iterator[StepPlan]:
    """Plans that need the most memory: most tokens and rows; longest prompts; decodes; prompts of
    which most is cached.

    Every table entry is page 0, the only page there is: what is computed is nonsense.
    """
    most, longest = limits.max_num_batched_tokens, limits.max_length - 1
    rows = min(limits.max_num_seqs, most)
    params = PLAIN if sampler.accepts(DEMANDING) else DEMANDING
    rest = np.arange(rows) >= rows - most % rows  # requests of one token come first, if any
    spread = np.minimum(most // rows + rest, longest)
    yield _plan(0, np.zeros_like(spread), spread, params)
    whole = np.full(min(most // longest, rows), longest)
    left = most - int(whole.sum())
    if left and len(whole) < rows:
        whole = np.append(left, whole)
    yield _plan(1, np.zeros_like(whole), whole, params)
    starts = np.full(rows, min(longest, LONG) - 1)
    starts[0] = longest - 1
    yield _plan(2, starts, np.ones(rows, np.int32), params)
    if longest > 2 and most > 1:
        last = min(most, longest - 1)
        yield _plan(3, np.array([longest - last]), np.array([last]), params)
        rows = min(rows, most // 2)
        yield _plan(4, np.full(rows, min(longest, LONG) - 2), np.full(rows, 2), params)


def _plan(number: int, starts: Ints, counts: Ints, params: SamplingParams) -> StepPlan:
    rows = np.arange(len(counts), dtype=np.int32)
    none = np.zeros(0, np.int32)
    lengths = (starts + counts).tolist()
    return StepPlan(
        number=number,
        rows=rows,
        starts=starts.astype(np.int32),
        counts=counts.astype(np.int32),
        sample=np.ones_like(rows),
        page_starts=np.zeros_like(rows),
        page_counts=np.zeros_like(rows),
        pages=none,
        released=rows if number else none,
        admitted=[
            Admission(
                row=row,
                request_id=f"measuring {row}",
                tokens=np.zeros(length, np.int32),
                prompt_length=length,
                params=params,
                seed=row,
                stop_ids=frozenset(),
            )
            for row, length in enumerate(lengths)
        ],
    )
