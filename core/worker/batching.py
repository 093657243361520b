"""Turns a step plan into the tensors of one step, on the worker's device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from core.types import AttentionMetadata, Batch, Decodes

if TYPE_CHECKING:
    from core.sampling.rows import SamplingTable
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


def build(plan: StepPlan, state: RequestRows, sampling: SamplingTable) -> Batch:
    """The batch of a plan whose news `state` and `sampling` have taken in.

    Only five short columns travel to the device; tokens, positions and slots are derived there
    from the rows' own state.
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

    rows, starts, lengths, starts_at, context_len, sample_index = state.staging.send(
        plan.rows, plan.starts, counts, query_start, ends, last
    )
    if total == size:
        owners, positions = rows, starts.long()
    else:
        of = torch.repeat_interleave(lengths, output_size=total)  # [T] which request a token is of
        owners = rows[of]
        positions = torch.arange(total, device=rows.device) - (starts_at[:-1] - starts)[of]

    page = state.page_size
    block = torch.div(positions, page, rounding_mode="floor")
    pages = state.page_table[owners, block].long()
    longest = int(ends.max())
    width = -(-longest // page)
    one_token = counts == 1
    decodes = size if total == size else int(np.argmin(one_token))
    return Batch(
        tokens=state.history[owners, positions].long(),
        positions=positions,
        attention=AttentionMetadata(
            query_start=starts_at,
            context_len=context_len,
            page_table=state.page_table[:, :width].index_select(0, rows),
            slots=pages * page + (positions - block * page),
            max_query=int(counts.max()),
            max_context=longest,
            decodes=decodes,
            query_lens=counts.tolist(),
            context_lens=ends.tolist(),
        ),
        sample_index=sample_index.long(),
        rows=sampling.select(sampled_rows, sampled_ends),
    )
