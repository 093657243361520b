"""The sampler of plait-good. Importing it is noticed by tests of laziness."""

from dataclasses import dataclass, field
from typing import Literal

from core.interfaces import Sampled, Sampler


class Good(Sampler):
    @dataclass
    class Options:
        floor: float = field(default=0.1, metadata={"help": "least share of the best"})
        mode: Literal["soft", "hard"] = "soft"
        names: list[str] = field(default_factory=list)

        def __post_init__(self):
            if not 0 <= self.floor <= 1:
                raise ValueError(f"floor must lie in 0 to 1, not {self.floor}.")

    def __call__(self, logits, rows):
        return Sampled(ids=logits.argmax(-1))
