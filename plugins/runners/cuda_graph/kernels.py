"""What a captured step does before and after the model, in one small launch each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from core.triton_launch import Launcher
from plugins.runners.cuda_graph.ends import pass_on
from plugins.runners.cuda_graph.mail import SLOTS

if TYPE_CHECKING:
    from torch import Tensor

    from core.types import Batch
    from plugins.runners.cuda_graph.buffers import StaticBatch

__all__ = ["begin", "finish", "pass_on", "place"]

BLOCK = 1024  # entries of a page table that are copied at a time
PLACED = 256  # tokens, and entries of a page table, that a program of `_place` copies at a time


def begin(static: StaticBatch) -> None:
    """See `ends.begin`. Of the page tables only what a context reaches is copied."""
    tables, batch, meta, mail = static.tables, static.batch, static.meta, static.mail
    _begin[(static.size,)](
        mail.news,
        mail.news.stride(0),
        mail.turn,
        static.size,
        tables.history,
        tables.history.stride(0),
        tables.page_table,
        tables.page_table.stride(0),
        tables.page_size,
        static.rows.index,
        static.rows.positions,
        batch.tokens,
        batch.positions,
        meta.context_len,
        meta.slots,
        meta.page_table,
        meta.page_table.stride(0),
        BLOCK=min(BLOCK, triton.next_power_of_2(tables.page_table.shape[1])),
        num_warps=4,
    )


def finish(static: StaticBatch, drawn: Tensor, logits: Tensor) -> None:
    """See `ends.finish`."""
    history = static.tables.history
    _finish[(static.size,)](
        drawn,
        logits,
        logits.stride(0),
        history,
        history.stride(0),
        static.rows.index,
        static.rows.positions,
        static.ids,
        static.mail.ids,
        static.mail.ids.stride(0),
        static.mail.turn,
        SLOTS=SLOTS,
        WHOLE=logits.shape[1] == static.vocab_size,
        num_warps=1,
    )


def place(static: Batch, batch: Batch) -> None:
    """See `ends.place`."""
    there, meta = static.attention, batch.attention
    count, size, room = len(batch.tokens), len(static.tokens), len(there.context_len)
    requests = len(meta.context_len) if room else 0
    asked = (static.wanted, batch.wanted)
    own, wanted = (batch.tokens[:0] if one is None else one for one in asked)
    _launch_place(
        (max(-(-size // PLACED), room), 1, 1),
        (
            *(batch.tokens, batch.positions, meta.slots),
            *(meta.query_start, meta.context_len, meta.page_table),
            *(static.tokens, static.positions, there.slots),
            *(there.query_start, there.context_len, there.page_table),
            *(wanted, own),
        ),
        (
            *(count, size, requests, room),
            *(len(wanted), len(own)),
            *(meta.page_table.shape[1], meta.page_table.stride(0), there.page_table.stride(0)),
        ),
        {"BLOCK": PLACED},
    )


@triton.jit(do_not_specialize=["news_stride", "size", "page_size"])
def _begin(
    news,
    news_stride,
    turn,
    size,
    history,
    history_stride,
    table,
    table_stride,
    page_size,
    index,
    ends,
    tokens,
    positions,
    context_len,
    slots,
    own_table,
    own_stride,
    BLOCK: tl.constexpr,
):
    """One program a request."""
    s = tl.program_id(0)
    slot = tl.load(turn)
    tl.store(turn + 1, slot)  # all programs store the same
    news += slot * news_stride
    row = tl.load(news + s).to(tl.int64)
    length = tl.load(news + size + s)
    page = tl.load(news + 2 * size + s)
    position = tl.maximum(length - 1, 0)
    block = position // page_size
    entry = table + row * table_stride + block
    if page >= 0:
        tl.store(entry, page)
    else:
        page = tl.load(entry)
    slot = page.to(tl.int64) * page_size + position % page_size
    tl.store(index + s, row)
    tl.store(ends + s, length.to(tl.int64))
    tl.store(context_len + s, length)
    tl.store(positions + s, position.to(tl.int64))
    tl.store(slots + s, tl.where(length > 0, slot, -1))
    tl.store(tokens + s, tl.load(history + row * history_stride + position).to(tl.int64))
    start = 0
    while start <= block:
        at = start + tl.arange(0, BLOCK)
        used = at <= block
        pages = tl.load(table + row * table_stride + at, mask=used, other=0)
        # what was stored above may not be seen by other threads yet
        pages = tl.where(at == block, page, pages)
        tl.store(own_table + s.to(tl.int64) * own_stride + at, pages, mask=used)
        start += BLOCK


@triton.jit
def _finish(
    drawn,
    logits,
    logits_stride,
    history,
    history_stride,
    index,
    ends,
    ids,
    mail,
    mail_stride,
    turn,
    SLOTS: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """One program a request."""
    s = tl.program_id(0)
    slot = tl.load(turn + 1)
    token = tl.load(drawn + s).to(tl.int64)
    good = token >= 0
    if WHOLE:
        value = tl.load(logits + s.to(tl.int64) * logits_stride + tl.maximum(token, 0))
        good = good & (tl.abs(value.to(tl.float32)) < float("inf"))  # false for NaN
    found = tl.where(good, token, -1).to(tl.int32)
    tl.store(ids + s, found)
    tl.store(mail + slot * mail_stride + s, found)
    if s == 0:
        tl.store(turn, (slot + 1) % SLOTS)  # which no program of this kernel reads
    place = tl.load(index + s) * history_stride + tl.load(ends + s)
    tl.store(history + place, tl.where(good, token, 0).to(tl.int32))


@triton.jit(
    do_not_specialize=range(14, 23),
    do_not_specialize_on_alignment=range(14),
)
def _place(
    tokens,
    positions,
    slots,
    query_start,
    context_len,
    table,
    own_tokens,
    own_positions,
    own_slots,
    own_start,
    own_context,
    own_table,
    wanted,
    own_wanted,
    count,
    size,
    requests,
    room,
    most_wanted,
    most_own,
    width,
    table_stride,
    own_stride,
    BLOCK: tl.constexpr,
):
    """Program p copies a block of the tokens, and the p-th request."""
    p = tl.program_id(0)
    at = p * BLOCK + tl.arange(0, BLOCK)
    here, kept = at < count, at < size
    tl.store(own_tokens + at, tl.load(tokens + at, mask=here, other=0), mask=kept)
    tl.store(own_positions + at, tl.load(positions + at, mask=here, other=0), mask=kept)
    tl.store(own_slots + at, tl.load(slots + at, mask=here, other=-1), mask=kept)
    asked = tl.load(wanted + at, mask=at < most_wanted, other=0)
    tl.store(own_wanted + at, asked, mask=at < most_own)
    if p < requests:
        tl.store(own_context + p, tl.load(context_len + p))
        tl.store(own_start + p + 1, tl.load(query_start + p + 1))
        row = p.to(tl.int64)
        start = 0
        while start < width:
            of = start + tl.arange(0, BLOCK)
            used = of < width
            pages = tl.load(table + row * table_stride + of, mask=used)
            tl.store(own_table + row * own_stride + of, pages, mask=used)
            start += BLOCK
    elif p < room:
        tl.store(own_context + p, 0)
        tl.store(own_start + p + 1, count)


_launch_place = Launcher(_place)
