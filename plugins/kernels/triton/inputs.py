"""Derives a step's tokens, positions, slots and page tables on the device, in one launch.

The host sends three short columns; everything else is known there. The twin is
`core.worker.batching.derive`. Attention reads these tensors before it waits for its predecessor, so
this kernel does not let its successor start before it has ended.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_wait

from core.triton_launch import Launcher

BLOCK = 256  # tokens, and entries of a page table, of one program


# The columns are slices of one copy from the host: most of them are not aligned to 16 bytes.
@triton.jit(do_not_specialize=["width"], do_not_specialize_on_alignment=range(9))
def _derive(
    rows,  # [B]
    starts,  # [B] tokens that were there before
    query_start,  # [B + 1]
    history,  # [R, HISTORY] int32
    page_table,  # [R, PAGES] int32
    tokens,  # [T]
    positions,  # [T]
    slots,  # [T]
    own_table,  # [B, width] int32: of a request's pages those that it has; the rest stays as it is
    width,
    HISTORY: tl.constexpr,
    PAGES: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    launch_pdl: tl.constexpr,
):
    """Grid (B, max(longest query, width) / BLOCK)."""
    if launch_pdl:
        gdc_wait()
    b = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(rows + b).to(tl.int64)
    start = tl.load(starts + b)
    first = tl.load(query_start + b)
    count = tl.load(query_start + b + 1) - first
    mine = page_table + row * PAGES

    here = place < count
    position = start + place
    page = tl.load(mine + position // PAGE, mask=here, other=0).to(tl.int64)
    token = tl.load(history + row * HISTORY + position, mask=here, other=0)
    at = first.to(tl.int64) + place
    tl.store(tokens + at, token, mask=here)
    tl.store(positions + at, position, mask=here)
    tl.store(slots + at, page * PAGE + position % PAGE, mask=here)

    used = place * PAGE < start + count
    tl.store(own_table + b * width + place, tl.load(mine + place, mask=used), mask=used)


_launch = Launcher(_derive)


def derive(
    rows: Tensor,
    starts: Tensor,
    query_start: Tensor,
    history: Tensor,
    page_table: Tensor,
    page_size: int,
    total: int,
    longest: int,
    width: int,
    pdl: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tokens, positions and slots [total] int64, and page tables [B, width] int32.

    rows, starts [B], query_start [B + 1], int32; history and page_table: `RequestRows`. `longest`:
    most tokens of a request in this step; width: most pages of a request.
    """
    device = rows.device
    rows, starts = rows.contiguous(), starts.contiguous()  # a plan's columns may be a table's
    tokens, positions, slots = (
        torch.empty(total, dtype=torch.int64, device=device) for _ in range(3)
    )
    own_table = torch.empty((len(rows), width), dtype=torch.int32, device=device)
    _launch(
        (len(rows), -(-max(longest, width) // BLOCK), 1),
        (rows, starts, query_start, history, page_table, tokens, positions, slots, own_table),
        (width,),
        (history.stride(0), page_table.stride(0), page_size, BLOCK),
        warps=4,
        pdl=pdl,
    )
    return tokens, positions, slots, own_table
