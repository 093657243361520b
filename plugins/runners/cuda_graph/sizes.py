"""Which batch sizes are captured, and which of them a step uses."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

SMALL = (1, 2, 4)


def standard(most: int) -> list[int]:
    """1, 2, 4, then steps of 8 to 256 and of 16 above, and always `most`. Ascending."""
    candidates = [*SMALL, *range(8, 257, 8), *range(272, most, 16)]
    return [size for size in candidates if size < most] + [most]


def chosen(sizes: Sequence[int], requests: int) -> int:
    """The smallest of ascending `sizes` that has room for so many requests."""
    return sizes[bisect_left(sizes, requests)]


def thinned(sizes: Sequence[int], count: int) -> list[int]:
    """At most `count` of ascending `sizes`, the largest among them.

    Left out are those whose requests lose least in the next larger one, relatively: large sizes
    become sparse before small ones do.
    """
    left = list(sizes)
    while len(left) > max(count, 1):
        waste = [after / size for size, after in pairwise(left)]
        del left[waste.index(min(waste))]
    return left
