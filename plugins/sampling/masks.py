"""Processors that forbid tokens, or shift their logits, by ids known from the start."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from core.interfaces import LogitsProcessor

if TYPE_CHECKING:
    from torch import Tensor

    from core.sampling.params import SamplingParams
    from core.sampling.rows import SampleRows


class Entries(NamedTuple):
    """Single logits of several rows, on the device; no entry is there twice."""

    row: Tensor  # [E] int64, 0 to N - 1
    token: Tensor  # [E] int64
    value: Tensor  # [E] float32


class AllowedTokens(LogitsProcessor):
    """`allowed_token_ids`: all other tokens are impossible."""

    def wants(self, params: SamplingParams) -> bool:
        return params.allowed_token_ids is not None

    def __call__(self, logits: Tensor, rows: SampleRows) -> Tensor:
        """logits [N, V] -> a copy with -inf at the other tokens."""
        row, token, _ = rows.remember(
            (AllowedTokens, "tokens"),
            lambda: entries(rows, [sorted(set(p.allowed_token_ids or ())) for p in rows.params]),
        )
        allowed = logits.new_full(logits.shape, -math.inf)
        allowed[row, token] = logits[row, token]
        return allowed


class MinTokens(LogitsProcessor):
    """`min_tokens`: what would end the text is impossible until the output has so many tokens."""

    def wants(self, params: SamplingParams) -> bool:
        return params.min_tokens > 0

    def __call__(self, logits: Tensor, rows: SampleRows) -> Tensor:
        """logits [N, V], changed in place."""
        least: np.ndarray = rows.remember(
            (MinTokens, "end"),
            lambda: np.array([a.prompt_length + a.params.min_tokens for a in rows.admissions]),
        )
        if not (rows.ends < least).any():
            return logits
        row, token, _ = rows.remember(
            (MinTokens, "tokens"),
            lambda: entries(rows, [sorted(a.stop_ids) for a in rows.admissions]),
        )
        early = rows.positions < rows.prompt_lengths + rows.column("min_tokens")
        logits[row, token] = logits[row, token].masked_fill_(early[row], -math.inf)
        return logits


class LogitBias(LogitsProcessor):
    """`logit_bias`, added to the logits."""

    def wants(self, params: SamplingParams) -> bool:
        return bool(params.logit_bias)

    def __call__(self, logits: Tensor, rows: SampleRows) -> Tensor:
        """logits [N, V], changed in place."""
        row, token, bias = rows.remember(
            (LogitBias, "tokens"), lambda: entries(rows, [p.logit_bias or {} for p in rows.params])
        )
        logits[row, token] += bias
        return logits


def entries(rows: SampleRows, tokens: Sequence[Sequence[int] | Mapping[int, float]]) -> Entries:
    """For each row its tokens, with values where it maps tokens to values."""
    counts = [len(of) for of in tokens]
    values = [of[t] if isinstance(of, Mapping) else 0.0 for of in tokens for t in of]
    send = rows.table.send
    return Entries(
        row=send(np.repeat(np.arange(len(counts)), counts)),
        token=send(np.array([token for of in tokens for token in of], np.int64)),
        value=send(np.array(values, np.float32)),
    )
