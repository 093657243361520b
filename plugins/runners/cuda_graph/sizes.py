"""Which batch sizes are captured, and which of them a step uses."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise

DENSE = [1, 2, 4, *range(8, 257, 8)]


def standard(most: int) -> list[int]:
    """1, 2, 4, steps of 8 to 256, of 16 to 512, of 32 to 1024 and so on, and `most`. Ascending."""
    sizes, step = list(DENSE), 16
    while sizes[-1] < most:
        sizes += range(sizes[-1] + step, 2 * sizes[-1] + 1, step)
        step *= 2
    return [size for size in sizes if size < most] + [most]


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


def measured(
    sizes: Sequence[int], capture: Callable[[int], None], used: Callable[[], int]
) -> tuple[int, int]:
    """Capture four of ascending `sizes`: the two largest, the middle one and that of a quarter.

    -> bytes that the first took, and the most that one of the others did, by what is `used`.
    """
    some = list(dict.fromkeys([*sizes[:-3:-1], sizes[len(sizes) // 2], sizes[len(sizes) // 4]]))
    taken = []
    for size in some:
        before = used()
        capture(size)
        taken.append(max(used() - before, 0))
    return taken[0], max(taken[1:], default=0)
