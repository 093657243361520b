"""The order of requests in which the longest context comes first.

Programs start in the order of the grid. Started last, a long request would run on alone.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["context_ptr", "requests"])
def longest_first(order_ptr, context_ptr, requests, ROWS: tl.constexpr, TILE: tl.constexpr):
    """order[place of request b] = b, for ROWS requests a program; equal ones keep their order."""
    b = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mine = tl.load(context_ptr + b, mask=b < requests, other=-1)
    place = tl.zeros([ROWS], tl.int32)
    for begin in range(0, requests, TILE):
        other = begin + tl.arange(0, TILE)
        length = tl.load(context_ptr + other, mask=other < requests, other=-1)
        longer = length[None, :] > mine[:, None]
        before = (length[None, :] == mine[:, None]) & (other[None, :] < b[:, None])
        place += tl.sum((longer | before).to(tl.int32), 1)
    tl.store(order_ptr + place, b, mask=b < requests)
