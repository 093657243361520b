"""What a captured step does before and after the model, in plain torch: the twin of `kernels`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from plugins.runners.cuda_graph.mail import SLOTS

if TYPE_CHECKING:
    from torch import Tensor

    from core.types import Batch
    from plugins.runners.cuda_graph.buffers import StaticBatch


def begin(static: StaticBatch) -> None:
    """Make all tensors of a step of its rows, context lengths and new pages.

    A row's token is the last that its history knows, sampled by the step before or not. Padding
    (context 0) gets position 0 and slot -1.
    """
    tables, batch, meta, mail = static.tables, static.batch, static.meta, static.mail
    mail.turn[1:] = mail.turn[:1]
    news = mail.news[mail.turn[0], : 3 * static.size].view(3, static.size)
    rows, lengths, pages = news.to(mail.turn.device).long().unbind()  # [S] each
    static.rows.index.copy_(rows)
    static.rows.positions.copy_(lengths)  # where the sampled token goes
    meta.context_len.copy_(lengths)
    positions = (lengths - 1).clamp_(min=0)
    block = torch.div(positions, tables.page_size, rounding_mode="floor")
    page = torch.where(pages >= 0, pages, tables.page_table[rows, block])
    tables.page_table[rows, block] = page.int()
    torch.index_select(tables.page_table, 0, rows, out=meta.page_table)
    batch.tokens.copy_(tables.history[rows, positions])
    batch.positions.copy_(positions)
    slots = page * tables.page_size + positions % tables.page_size
    meta.slots.copy_(torch.where(lengths > 0, slots, -1))


def finish(static: StaticBatch, drawn: Tensor, logits: Tensor) -> None:
    """Write drawn ids [S] into the rows' histories, into `static.ids`, and into the mail.

    A row whose drawn token has no finite logit in logits [S, V] gets -1 there, and 0 as its token.
    """
    good = drawn >= 0
    if logits.shape[1] == static.vocab_size:  # else it is a part of the vocabulary
        value = logits.gather(1, drawn.long().clamp(min=0)[:, None])[:, 0]
        good &= value.isfinite()
    static.ids.copy_(torch.where(good, drawn, -1))
    kept = torch.where(good, drawn, 0).int()
    static.tables.history[static.rows.index, static.rows.positions] = kept
    mail = static.mail
    mail.ids[mail.turn[1], : static.size].copy_(static.ids)
    pass_on(static)


def pass_on(static: StaticBatch) -> None:
    """Let it be the next step's turn."""
    turn = static.mail.turn
    turn[:1] = (turn[1:] + 1) % SLOTS


def place(static: Batch, batch: Batch) -> None:
    """Copy a step with prompts to fixed addresses, which have room for more of everything.

    Padding: tokens at position 0 and slot -1, and requests without tokens and context. Where there
    is no room for requests at all, nothing but the tokens is copied, and which are wanted, where
    that is asked.
    """
    there, meta = static.attention, batch.attention
    count, requests = len(batch.tokens), len(meta.context_len) if len(there.context_len) else 0
    for target, source in ((static.tokens, batch.tokens), (static.positions, batch.positions)):
        target[:count].copy_(source)
        target[count:].zero_()
    there.slots[:count].copy_(meta.slots)
    there.slots[count:].fill_(-1)
    if static.wanted is not None:
        assert batch.wanted is not None
        static.wanted[: len(batch.wanted)].copy_(batch.wanted)
        static.wanted[len(batch.wanted) :].zero_()
    if requests == 0:
        return
    there.context_len[:requests].copy_(meta.context_len)
    there.context_len[requests:].zero_()
    there.query_start[: requests + 1].copy_(meta.query_start)
    there.query_start[requests + 1 :].fill_(count)
    there.page_table[:requests, : meta.page_table.shape[1]].copy_(meta.page_table)
