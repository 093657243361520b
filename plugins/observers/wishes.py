"""What a request wants to see, as its `extra_args` say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

POSITIONS = ("all", "prompt", "output", "last")
SHAPE = (
    'Give a list of layers such as [0, -1], "all", or {"layers": ..., "positions": ...} with one '
    f"of {', '.join(POSITIONS)}."
)


@dataclass(frozen=True)
class Wish:
    """Layers, by the numbers that the request has for them, and positions."""

    layers: Mapping[int, int]  # as asked (-1, say) -> counted from the first
    positions: str

    def span(self, prompt: int, end: int) -> range:
        """Its positions below `end`, for a prompt of `prompt` tokens.

        "last" is the prompt's last token, from which the first token of the answer is predicted.
        """
        first = {"output": prompt, "last": prompt - 1}.get(self.positions, 0)
        stop = end if self.positions in ("all", "output") else min(prompt, end)
        return range(min(first, stop), stop)


def wish(key: str, asked: Any, layers: int) -> Wish:
    """The wish behind `extra_args[key]`, where there are so many layers. ValueError says why not.

    Layers count from 0, and from the end below it, as Python's lists do.
    """
    given: Mapping[str, Any] = asked if isinstance(asked, Mapping) else {"layers": asked}
    positions = given.get("positions", "all")
    numbers = given.get("layers")
    if isinstance(numbers, str) and numbers == "all":
        numbers = range(layers)
    elif isinstance(numbers, int):
        numbers = [numbers]
    if given.keys() - {"layers", "positions"} or positions not in POSITIONS:
        raise ValueError(f"{key}: {asked!r} is not understood. {SHAPE}")
    if not isinstance(numbers, list | tuple | range) or not all(map(_whole, numbers)):
        raise ValueError(f"{key}: {numbers!r} are no layers. {SHAPE}")
    if wrong := [n for n in numbers if not -layers <= n < layers]:
        raise ValueError(
            f"{key}: there is no {wrong[0]}. This model has 0 to {layers - 1}, and -1 is the last."
        )
    return Wish({n: n % layers for n in numbers}, positions)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
