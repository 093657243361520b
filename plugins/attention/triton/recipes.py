"""How a launch is cut: tiles, warps and splits, by the number of programs and the size of a head.

Measured on an H200 with heads of 128 in two bytes; tiles shrink as heads grow, so that a tile has
about as many bytes. Everything is decided on the host from sizes that a CUDA graph fixes.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.triton_launch import power_of_two

MOST_SPLITS = 64
MOST_PROGRAMS = 1024  # of launches that split
MANY = 1024  # programs from which the order of requests matters
USUAL = 4096  # tokens of a context, for which launches are cut even if all are shorter
MOST_ROWS = 16  # query heads in a tile that decodes


@dataclass(frozen=True)
class Decoding:
    """Sizes of a launch for requests of one query token."""

    splits: int
    tile: int  # tokens
    least: int  # tokens of a split
    warps: int
    stages: int  # of the pipelined loop
    ahead: bool  # fused: the first tile is loaded before the kernel waits for its predecessor


@dataclass(frozen=True)
class Prompting:
    """Sizes of a launch for requests of any number of query tokens."""

    rows: int
    tile: int  # tokens
    warps: int
    stages: int


def decoding(
    groups: int, size: int, itemsize: int, bound: int, rows: int = 1, wide: bool = False
) -> Decoding:
    """For `groups` (requests times tiles of query heads) of contexts up to `bound` tokens.

    `size`: entries of a head, a power of two; `itemsize`: bytes of one in the cache; `rows`: query
    heads in a tile; `wide`: products in float32. Few groups: programs of many warps, and as many
    splits as the device can hold at once. Many: programs of one warp, which need no barriers, a
    dozen a multiprocessor.
    """
    if groups <= 8:
        tile, least, warps, stages, target = 64, 64, 4, 1, 256
    elif groups < 64:
        tile, least, warps, stages, target = 128, 128, 4, 1, 256
    elif groups <= 256:
        tile, least, warps, stages, target = 64, 128, 2, 2, 512 if groups > 64 else 256
    else:
        tile, least, warps, stages, target = 32, 128, 1, 3, MOST_PROGRAMS
    tile = max(16, min(tile, tile * 256 // (size * itemsize)))
    warps = max(warps, rows * size // 2048)  # or the sums do not fit into registers
    if wide:
        tile, stages = 16, 1
    if itemsize == 1:  # pipelined through shared memory, it would be read byte by byte
        stages = 1
    splits = max(1, min(target // groups, MOST_SPLITS, power_of_two(-(-bound // least))))
    splits = 1 << (splits.bit_length() - 1)
    return Decoding(splits, tile, least, warps, stages, ahead=groups <= MANY)


def prompting(size: int, wide: bool = False, roomy: bool = True) -> Prompting:
    """For heads of `size` entries, a power of two; `wide`: products in float32. Not `roomy`: a GPU
    with 99 KiB of shared memory for a block, such as an L4 or a GeForce, instead of 163 or more."""
    if wide:
        return Prompting(16, 16, 4, 1)
    if size <= 128:
        return Prompting(128, 64, 8, 3)
    return Prompting(64, 64 if roomy else 32, 4, 2)
