"""The processor behind `bad_words`: a text is forbidden by forbidding its last token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from core.interfaces import LogitsProcessor

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from core.sampling.params import SamplingParams
    from core.sampling.rows import SampleRows


class Words(NamedTuple):
    """The token sequences of all rows' bad words, on the device. W words, whose K tokens before
    the last stand one behind the other: a long word costs its own length, and no other's."""

    row: Tensor  # [W] int64, whose word it is
    last: Tensor  # [W] int64
    word: Tensor  # [K] int64, which word the token belongs to
    token: Tensor  # [K] int64
    back: Tensor  # [K] int64, how many tokens before the word's last it stands


class BadWords(LogitsProcessor):
    """Where the output ends with all of a word but its last token, that token is impossible.

    As in vLLM the prompt does not count: a word that began there may be completed.
    """

    def wants(self, params: SamplingParams) -> bool:
        return bool(params.bad_words)

    def __call__(self, logits: Tensor, rows: SampleRows) -> Tensor:
        """logits [N, V], changed in place."""
        words: Words = rows.remember((BadWords, "words"), lambda: _words(rows))
        row = words.row[words.word]
        place = rows.positions[row] - words.back
        tokens = rows.table.history[rows.index[row], place.clamp(min=0)]
        # what is before the text, too, is before the output
        other = (tokens != words.token) | (place < rows.prompt_lengths[row])
        missing = torch.zeros_like(words.row).scatter_add_(0, words.word, other.long())
        # two words of a row may end alike: the smaller value wins, in whatever order they come
        limit = torch.where(missing == 0, -math.inf, math.inf)
        at = words.row * logits.shape[1] + words.last
        logits.view(-1).scatter_reduce_(0, at, limit, "amin")
        return logits


def _words(rows: SampleRows) -> Words:
    spelled: dict[int, _Spelled] = {}  # the answers to one prompt have the same parameters
    for params in rows.params:
        assert params.bad_words_token_ids, "SamplingParams.check is due"
        if id(params) not in spelled:
            spelled[id(params)] = _spell(params.bad_words_token_ids)
    each = [spelled[id(params)] for params in rows.params]
    counts = np.array([len(words.last) for words in each])
    first = counts.cumsum() - counts  # [N] the number of a row's first word
    send = rows.table.send
    return Words(
        row=send(np.arange(len(each)).repeat(counts)),
        last=send(np.concatenate([words.last for words in each])),
        word=send(np.concatenate([words.word + at for words, at in zip(each, first, strict=True)])),
        token=send(np.concatenate([words.token for words in each])),
        back=send(np.concatenate([words.back for words in each])),
    )


class _Spelled(NamedTuple):
    """The words of one request, as `Words` has those of all."""

    last: NDArray[np.int64]
    word: NDArray[np.int64]
    token: NDArray[np.int64]
    back: NDArray[np.int64]


def _spell(words: Sequence[Sequence[int]]) -> _Spelled:
    lengths = np.array([len(word) for word in words])
    ends = lengths.cumsum()
    tokens = np.fromiter(chain.from_iterable(words), np.int64, int(ends[-1]))
    back = ends.repeat(lengths) - np.arange(1, len(tokens) + 1)
    before = back > 0
    number = np.arange(len(words)).repeat(lengths)
    return _Spelled(tokens[ends - 1], number[before], tokens[before], back[before])
