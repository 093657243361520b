"""A checkpoint on any number of ranks, each a thread: token ids in, logits of all of them out."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from core.dialect import arguments
from core.errors import UserError
from core.parallel import ThreadGroup, unshard
from core.parallel.groups import ThreadCommunicator
from core.plugins import load_like
from core.registry import registries
from core.sampling.params import SamplingParams
from core.settings import auto, from_arguments
from core.setup import Setup, check_weights, device_of, limits_of, read_setup
from core.testing.attention import AttentionCase
from core.types import Admission, StepPlan
from core.worker import Worker, batching

T = TypeVar("T")

PAGES = 96
NONE = np.zeros(0, np.int32)


def attention_for(device: str) -> tuple[str, int]:
    """A backend for float32 on a device, one that graphs can hold if there is any; its page size.

    In float32 the order of a sum changes no token, so that engines can be compared by tokens.
    """
    found: list[tuple[bool, int, str, int]] = []
    for place, name in enumerate(auto.candidates("attention", device)):
        if name not in registries.attention.names() or registries.attention.entry(name).missing():
            continue
        backend = registries.attention.get(name)
        case = AttentionCase.of(backend, [(0, 1)], head_dim=32, device=device, dtype=torch.float32)
        if not backend.rejects(case.shape):
            size = (*backend.page_sizes, 4)[0]
            found.append((not backend.graphable, place, name, size))
    if not found:
        raise UserError(f"no attention backend computes in float32 on {device}")
    return min(found)[2:]


class Ranks:
    """Workers as an executor has them, without scheduler, sampler or runner in the way.

    Settings are those of `core.LLM`; the type is float32 unless they say otherwise.
    """

    def __init__(
        self, path: Path, tensor: int = 1, *, device: str = "cpu", **settings: Any
    ) -> None:
        """All ranks share one device."""
        load_like(settings.get("plugins", ()))  # what there is to choose from
        attention, page_size = attention_for(device)
        given: dict[str, Any] = {
            "model": path,
            "device": device,
            "dtype": "float32",
            "attention": attention,
            "tensor_parallel_size": tensor,
            "parallel": {"replicate_limit": 1.0},
            "cache": {"page_size": page_size, "pages": PAGES},
            "scheduler": {"use": "fcfs", "max_num_seqs": 8, "max_num_batched_tokens": 512},
        }
        self.config = from_arguments(arguments(given | settings))
        self.setup: Setup = read_setup(self.config)
        check_weights(self.config, self.setup)
        self.group = ThreadGroup(tensor)
        place = device_of(self.config, 0)
        self.workers = [
            Worker(self.config, self.setup, rank, ThreadCommunicator(self.group, rank), place)
            for rank in range(tensor)
        ]
        self._everywhere(lambda worker: worker.load())
        self._ready = False

    def weights(self) -> dict[str, Tensor]:
        """The checkpoint again, put together from what the ranks hold; before any `logits`.

        ValueError if weights were computed while they were read.
        """
        assert not self._ready, "kernels may have changed the memory order of weights"
        return unshard(self.setup.plan, [worker.model.state_dict() for worker in self.workers])

    def logits(
        self, sequences: Sequence[Sequence[int]], steps: Sequence[Sequence[int]] | None = None
    ) -> list[Tensor]:
        """The logits [T, V] of each sequence; all ranks that have them must have the same bits.

        `steps[i][s]`: tokens of sequence s that step i computes, 0 for none. None: each sequence
        in a step of its own.
        """
        if not self._ready:
            self._prepare()
        if steps is None:
            steps = np.diag([len(ids) for ids in sequences]).tolist()
        found: list[list[Tensor]] = [[] for _ in sequences]
        for plan in plans_of(sequences, steps or [], self.workers[0].page_size):
            first, *others = self._everywhere(partial(step, plan=plan))
            assert first.isfinite().all(), "logits are not finite"
            for rank, other in enumerate(others, 1):
                if other.numel():
                    assert torch.equal(other, first), f"rank {rank} has other logits than rank 0"
            parts = first.cpu().split(plan.counts.tolist())
            for row, part in zip(plan.rows.tolist(), parts, strict=True):
                found[row].append(part)
        return [torch.cat(parts) for parts in found]

    def _prepare(self) -> None:
        first = self.workers[0]
        limits = limits_of(self.config, self.setup, first.page_size, PAGES)
        self._everywhere(lambda worker: worker.prepare(limits))
        for worker in self.workers:
            for module in worker.model.modules():
                if (cache := getattr(module, "cache", None)) is not None:
                    for x in cache:  # nothing that was not stored may be read
                        x.fill_(torch.nan)
        self._ready = True

    def _everywhere(self, action: Callable[[Worker], T]) -> list[T]:
        return self.group.run(lambda comm: action(self.workers[comm.rank]))


@torch.inference_mode()
def step(worker: Worker, plan: StepPlan) -> Tensor:
    """The logits [T, V] of all tokens of a plan."""
    worker.sampling.release(plan.released)
    worker.rows.admit(plan.admitted)
    worker.sampling.admit(plan.admitted)
    worker.rows.append(plan)
    batch = batching.build(plan, worker.rows, worker.sampling, worker.kernels)
    for backend in worker.backends:
        backend.plan(batch.attention)
    logits: Tensor = worker.model.logits(worker.forward(batch))  # type: ignore[operator]
    return logits


def plans_of(
    sequences: Sequence[Sequence[int]], steps: Sequence[Sequence[int]], page_size: int
) -> list[StepPlan]:
    """Plans that compute known sequences: row s is sequence s, pages are in random order."""
    free = list(range(PAGES))
    random.Random(0).shuffle(free)
    done, held = [0] * len(sequences), [0] * len(sequences)
    released = NONE
    plans = []
    for number, counts in enumerate(steps):
        # requests with one token come first
        rows = sorted((s for s, n in enumerate(counts) if n), key=lambda s: counts[s] != 1)
        news, grown, pages = [], [], []
        for s in rows:
            if not done[s]:
                ids = np.array(sequences[s], np.int32)
                params = SamplingParams()
                news.append(Admission(s, str(s), ids, len(ids), params, s, frozenset()))
            more = -(-(done[s] + counts[s]) // page_size) - held[s]
            grown.append(more)
            pages += [free.pop() for _ in range(more)]
        plans.append(
            StepPlan(
                number,
                rows=_ints(rows),
                starts=_ints([done[s] for s in rows]),
                counts=_ints([counts[s] for s in rows]),
                sample=_ints([1] * len(rows)),
                page_starts=_ints([held[s] for s in rows]),
                page_counts=_ints(grown),
                pages=_ints(pages),
                released=released,
                admitted=news,
            )
        )
        for s, more in zip(rows, grown, strict=True):
            done[s], held[s] = done[s] + counts[s], held[s] + more
    assert done == [len(ids) for ids in sequences], "the steps do not compute the sequences"
    return plans


def _ints(values: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(values, np.int32)
