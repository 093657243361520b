"""Components of a process that knows no others: a sampler with options, and an app."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from core.interfaces import App, Sampled, Sampler


class MinP(Sampler):
    """A sampler with options."""

    @dataclass
    class Options:
        floor: float = field(default=0.1, metadata={"help": "least share"})
        steps: int = 4

    def __call__(self, logits: Any, rows: Any) -> Sampled:
        raise NotImplementedError


class Recite(App):
    """An app that says its text and returns its status."""

    @dataclass
    class Options:
        text: str = "hello"
        status: int = 0
        words: dict[str, Any] = field(default_factory=dict)
        fault: str | None = None

    def run(self, config: Any) -> int:
        if self.options.fault == "interrupt":
            raise KeyboardInterrupt
        if self.options.fault:
            raise RuntimeError(self.options.fault)
        print(self.options.text)
        return self.options.status
