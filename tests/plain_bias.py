"""A logits processor for tests, as a one-file plugin: nothing that a graph can hold."""

from __future__ import annotations

from core.interfaces import LogitsProcessor
from core.registry import processors


@processors.register("plain-bias", summary="adds nothing")
class PlainBias(LogitsProcessor):
    def wants(self, params):
        return True

    def __call__(self, logits, rows):
        return logits + 0.0
