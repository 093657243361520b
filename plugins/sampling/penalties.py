"""The processor behind the three penalties for tokens that were there before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from core.interfaces import LogitsProcessor

if TYPE_CHECKING:
    from torch import Tensor

    from core.sampling.params import SamplingParams
    from core.sampling.rows import History, SampleRows


class Penalties(LogitsProcessor):
    """Repetition over prompt and output, frequency and presence over the output alone.

    A token's logit is divided by the repetition penalty, or multiplied with it where it is
    negative, once however often the token is there (CTRL, arXiv:1909.05858). Then it loses the
    frequency penalty for each occurrence, and the presence penalty once.
    """

    def wants(self, params: SamplingParams) -> bool:
        return bool(
            params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1
        )

    def __call__(self, logits: Tensor, rows: SampleRows) -> Tensor:
        """logits [N, V], changed in place, at the tokens of each row's history alone."""
        counted = rows.remember(
            (Penalties, "counted"),
            lambda: any(p.presence_penalty or p.frequency_penalty for p in rows.params),
        )
        for part in rows.parts():
            history, some = rows.history(part), logits[part]
            x = some.gather(1, history.tokens)  # [N', L]
            repetition = rows.column("repetition_penalty")[part, None]
            x = torch.where(x > 0, x / repetition, x * repetition)
            if counted:
                counts = _occurrences(history, logits.shape[1])
                x -= rows.column("frequency_penalty")[part, None] * counts
                x -= rows.column("presence_penalty")[part, None] * (counts > 0)
            # a token that is there twice gets the same value twice
            some.scatter_(1, history.tokens, x)
        return logits


def _occurrences(history: History, vocab_size: int) -> Tensor:
    """[N, L]: how often the token at each place of a row is in the row's output."""
    output = torch.where(history.output, history.tokens, vocab_size).sort(-1).values
    after = torch.searchsorted(output, history.tokens, right=True)
    return after - torch.searchsorted(output, history.tokens)
