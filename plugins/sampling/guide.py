"""The processor for structured outputs: joins the chain when a request asks for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any

from core import registry
from core.errors import UserError
from plugins.sampling.chain import Chain, name_of

if TYPE_CHECKING:
    from core.config import Config
    from core.interfaces import LogitsProcessor
    from core.sampling.params import SamplingParams
    from core.setup import Setup

USUAL = "guided"
"""Who is asked where nobody was chosen. It may be switched off, or its package not be installed."""


class Guide:
    """Most runs never need it, and its package may not be installed: so it waits to be asked for.

    A configuration that gives it options has it from the start.
    """

    def __init__(self, entry: Any, chain: Chain) -> None:
        """`entry`: a name, or a mapping of `use: name` and options; UserError if that is unusable.
        None: nobody."""
        self._entry, self._chain = entry, chain
        self._name = None if entry is None else name_of(entry)
        self._place: tuple[Config, Setup] | None = None
        self._lock = Lock()
        if isinstance(entry, Mapping):
            chain.add(*self._make())

    def check(self) -> None:
        """UserError if one that was chosen can never join. A missing package is no mistake yet."""
        name = self._name
        if name is None or name == USUAL or name in self._chain.processors:
            return
        if not registry.processors.entry(name).missing():
            self._make()

    def prepare(self, config: Config, setup: Setup) -> None:
        """Prepare all of the chain, and what joins it later."""
        self._place = config, setup
        for processor in self._chain.processors.values():
            processor.prepare(config, setup)

    def fetch(self, asking: Iterable[SamplingParams]) -> None:
        """Let it join if one of these asks. UserError if it cannot be had."""
        if self._name in self._chain.processors or not any(map(self._asks, asking)):
            return
        with self._lock:
            if self._name in self._chain.processors:
                return
            name, processor = self._make()
            try:
                if self._place is not None:
                    processor.prepare(*self._place)
            except BaseException:
                processor.close()
                raise
            self._chain.add(name, processor)  # now others see it

    def _make(self) -> tuple[str, LogitsProcessor]:
        name, processor = self._chain.make(self._entry)
        if not processor.only_asked:
            raise UserError(
                f"the logits processor {name!r} may want requests that ask for no form (it is not "
                "only_asked), so it has to be there from the start. Name it in sampler.processors, "
                "with its options, and give sampler.structured the name alone."
            )
        return name, processor

    def slow(self, params: SamplingParams) -> bool:
        """Whether one of the chain takes long to accept these, or has to be fetched first."""
        if self._name not in self._chain.processors and self._asks(params):
            return True
        return any(processor.slow(params) for processor in self._chain.processors.values())

    def _asks(self, params: SamplingParams) -> bool:
        return params.structured_outputs is not None or self._name in (params.extra_args or ())
