"""Asks about requests whose acceptance takes long, while the step loop goes on."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.interfaces import Sampler
    from core.sampling.params import SamplingParams


class Asking:
    """For whoever runs a step loop for many. `Engine.add` asks in any case; once the future that
    `start` gives is done, it gets its answer at once."""

    def __init__(self, sampler: Sampler, threads: int = 2) -> None:
        self._sampler = sampler
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="plait asking")

    def start(self, params: SamplingParams) -> Future[list[str]] | None:
        """Ask about a request in another thread, if that may take long. None: add it now."""
        if not self._sampler.slow(params):
            return None
        return self._pool.submit(self._sampler.accepts, params)

    def close(self) -> None:
        """Ask nothing more. What was begun goes on, and nobody waits for it."""
        self._pool.shutdown(wait=False, cancel_futures=True)
