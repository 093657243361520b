"""The processor for structured outputs: joins the chain when a request asks for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any

from plugins.sampling.chain import Chain

if TYPE_CHECKING:
    from core.config import Config
    from core.sampling.params import SamplingParams
    from core.setup import Setup


class Guide:
    """Most runs never need it, and its package may not be installed: so it waits to be asked for.

    A configuration that gives it options has it from the start.
    """

    def __init__(self, entry: Any, chain: Chain) -> None:
        """`entry`: a name, or a mapping of `use: name` and options."""
        self._entry, self._chain = entry, chain
        self._name = entry.get("use") if isinstance(entry, Mapping) else entry
        self._place: tuple[Config, Setup] | None = None
        self._lock = Lock()

    def prepare(self, config: Config, setup: Setup) -> None:
        """Prepare all of the chain, and what joins it later."""
        self._place = config, setup
        if isinstance(self._entry, Mapping) and self._name not in self._chain.processors:
            self._chain.add(self._entry)
        for processor in self._chain.processors.values():
            processor.prepare(config, setup)

    def fetch(self, asking: Iterable[SamplingParams]) -> None:
        """Let it join if one of these asks. UserError if it cannot be had."""
        if self._name in self._chain.processors or not any(map(self._asks, asking)):
            return
        with self._lock:
            if self._name not in self._chain.processors:
                processor = self._chain.add(self._entry)
                if self._place is not None:
                    processor.prepare(*self._place)

    def slow(self, params: SamplingParams) -> bool:
        """Whether one of the chain takes long to accept these, or has to be fetched first."""
        if self._name not in self._chain.processors and self._asks(params):
            return True
        return any(processor.slow(params) for processor in self._chain.processors.values())

    def _asks(self, params: SamplingParams) -> bool:
        return params.structured_outputs is not None or self._name in (params.extra_args or ())
