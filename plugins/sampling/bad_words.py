"""The processor behind `bad_words`: a text is forbidden by forbidding its last token."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from core.interfaces import LogitsProcessor

if TYPE_CHECKING:
    from torch import Tensor

    from core.sampling.params import SamplingParams
    from core.sampling.rows import SampleRows

ANY = -1  # fills up the beginnings of shorter words


class Words(NamedTuple):
    """The token sequences of all rows' bad words, on the device."""

    row: Tensor  # [W] int64, whose word it is
    start: Tensor  # [W, M] int64, all tokens but the last, ended flush and filled up with ANY
    last: Tensor  # [W] int64


class BadWords(LogitsProcessor):
    """Where the output ends with all of a word but its last token, that token is impossible.

    As in vLLM the prompt does not count: a word that began there may be completed.
    """

    def wants(self, params: SamplingParams) -> bool:
        return bool(params.bad_words)

    def __call__(self, logits: Tensor, rows: SampleRows) -> Tensor:
        """logits [N, V], changed in place."""
        words: Words = rows.remember((BadWords, "words"), lambda: _words(rows))
        width = words.start.shape[1]
        complete = torch.ones_like(words.row, dtype=torch.bool)
        if width:
            row = words.row[:, None]
            place = rows.positions[row] - torch.arange(width, 0, -1, device=logits.device)
            tokens = rows.table.history[rows.index[row], place.clamp(min=0)]
            # what is before the text, too, is before the output
            same = (tokens == words.start) & (place >= rows.prompt_lengths[row])
            complete = (same | (words.start == ANY)).all(1)
        # two words of a row may end alike: the smaller value wins, in whatever order they come
        limit = torch.where(complete, -math.inf, math.inf)
        at = words.row * logits.shape[1] + words.last
        logits.view(-1).scatter_reduce_(0, at, limit, "amin")
        return logits


def _words(rows: SampleRows) -> Words:
    assert all(params.bad_words_token_ids for params in rows.params), "SamplingParams.check is due"
    listed = [
        (row, word) for row, params in enumerate(rows.params) for word in params.bad_words_token_ids
    ]
    width = max((len(word) for _, word in listed), default=1) - 1
    start = np.full((len(listed), width), ANY, np.int64)
    for line, (_, word) in zip(start, listed, strict=True):
        line[width - len(word) + 1 :] = word[:-1]
    send = rows.table.send
    return Words(
        row=send(np.array([row for row, _ in listed], np.int64)),
        start=send(start),
        last=send(np.array([word[-1] for _, word in listed], np.int64)),
    )
