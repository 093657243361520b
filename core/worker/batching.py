"""Turns a step plan into the tensors of one step, on the worker's device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import torch

from core.types import AttentionMetadata, Batch, Decodes

if TYPE_CHECKING:
    from torch import Tensor

    from core.sampling.table import SamplingTable
    from core.types import StepPlan
    from core.worker.rows import RequestRows


def decodes(plan: StepPlan, page_size: int, sampling: SamplingTable) -> Decodes | None:
    """The plan as columns for a captured step, or None if a request does more than decode.

    Then the only news of a request is the page that its token begins, if it begins one.
    """
    if not (plan.sample.all() and (plan.counts == 1).all()):
        return None
    pages = np.full(len(plan.rows), -1, np.int32)
    if len(plan.pages):
        grown = plan.page_counts > 0
        begun = plan.page_starts[grown] * page_size
        if len(plan.pages) != len(begun) or not np.array_equal(begun, plan.starts[grown]):
            return None  # one that was admitted brings pages that the prefix cache gave
        pages[grown] = plan.pages
    ends = plan.starts + plan.counts
    return Decodes(plan.rows, ends, pages, sampling.select(plan.rows, ends))


@runtime_checkable
class InputKernels(Protocol):
    """What a kernel set may offer, beside `core.interfaces.Kernels`, for a step's tensors."""

    def derive(
        self,
        rows: Tensor,
        starts: Tensor,
        query_start: Tensor,
        history: Tensor,
        page_table: Tensor,
        page_size: int,
        total: int,
        longest: int,
        width: int,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What `derive` below gives, without waiting for the device."""


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
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tokens, positions, slots [total] int64 and page tables [B, width] int32 of a step.

    rows, starts [B], query_start [B + 1]: int32 columns of its plan; history and page_table: those
    of the rows. Of its `total` tokens no request has more than `longest`, and none has more than
    `width` pages; what is past a request's last page may be anything.
    """
    if longest == 1:
        owners, positions = rows, starts.long()
    else:
        counts = query_start[1:] - query_start[:-1]
        of = torch.repeat_interleave(counts, output_size=total)  # [T] which request a token is of
        owners = rows[of]
        positions = torch.arange(total, device=rows.device) - (query_start[:-1] - starts)[of]
    block = torch.div(positions, page_size, rounding_mode="floor")
    pages = page_table[owners, block].long()
    tokens = history[owners, positions].long()
    slots = pages * page_size + (positions - block * page_size)
    return tokens, positions, slots, page_table[:, :width].index_select(0, rows)


def build(
    plan: StepPlan,
    state: RequestRows,
    sampling: SamplingTable,
    kernels: object = None,
    *,
    whole: bool = True,
) -> Batch:
    """The batch of a plan whose news `state` and `sampling` have taken in.

    Only five short columns travel to the device; tokens, positions and slots are derived there
    from the rows' own state, by the kernel set if it is one of `InputKernels`. `whole`: the hidden
    states of all tokens are asked for, not those of sampled tokens alone.
    """
    counts, size = plan.counts, len(plan.rows)
    ends = plan.starts + counts
    query_start = np.zeros(size + 1, np.int32)
    np.cumsum(counts, out=query_start[1:])
    total = int(query_start[-1])
    sampled = np.flatnonzero(plan.sample)
    if len(sampled) == size:
        sampled_rows, sampled_ends, last = plan.rows, ends, query_start[1:] - 1
    else:
        sampled_rows, sampled_ends = plan.rows[sampled], ends[sampled]
        last = query_start[1:][sampled] - 1

    rows, starts, starts_at, context_len, wanted = state.staging.send(
        plan.rows, plan.starts, query_start, ends, last if len(last) else query_start[:1]
    )
    wanted = wanted.long()
    longest, page = int(counts.max()), state.page_size
    max_context = int(ends.max())
    tokens, positions, slots, page_table = (
        kernels.derive if isinstance(kernels, InputKernels) else derive
    )(
        rows,
        starts,
        starts_at,
        state.history,
        state.page_table,
        page,
        total,
        longest,
        -(-max_context // page),
    )
    return Batch(
        tokens=tokens,
        positions=positions,
        attention=AttentionMetadata(
            query_start=starts_at,
            context_len=context_len,
            page_table=page_table,
            slots=slots,
            max_query=longest,
            max_context=max_context,
            decodes=size if total == size else int(np.argmin(counts == 1)),
            query_lens=counts.tolist(),
            context_lens=ends.tolist(),
        ),
        sample_index=wanted[: len(last)],
        rows=sampling.select(sampled_rows, sampled_ends),
        wanted=None if whole or len(wanted) == total else wanted,
    )
