"""Colours of ranks, on light paper (white letters on them) and on dark paper (black letters)."""

from __future__ import annotations

from dataclasses import dataclass

# Each light one has a contrast of 4.5 to white letters, each dark one of 7 to black ones.
PALETTE = (
    ("#2b66cf", "#86b3ff"),
    ("#b9530b", "#ffab66"),
    ("#187a45", "#6fd69b"),
    ("#8443c6", "#cba6ff"),
    ("#c02a5f", "#ff9bba"),
    ("#0b7780", "#62d5de"),
    ("#7a6700", "#e3d05c"),
    ("#7d5138", "#dcb196"),
)
FADE = 0.55  # how far the last round of ranks is from the first, towards black or white


@dataclass(frozen=True)
class Colour:
    """The colour of a rank."""

    light: str
    dark: str


def colours(count: int) -> list[Colour]:
    """One for each rank. After eight ranks the same come again, darker on light paper."""
    rounds = -(-count // len(PALETTE))
    found = []
    for rank in range(count):
        light, dark = PALETTE[rank % len(PALETTE)]
        faded = FADE * (rank // len(PALETTE)) / max(rounds - 1, 2)
        found.append(Colour(_mixed(light, "#000000", faded), _mixed(dark, "#ffffff", faded)))
    return found


def _mixed(colour: str, other: str, share: float) -> str:
    """`share` of the other colour, the rest of the first, channel by channel."""
    pairs = [(int(colour[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)
