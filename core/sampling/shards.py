"""Draws from logits of which each rank has a part: ranks exchange their best, and not all of them.

Noise depends on a token's id and not on its neighbours (`core.sampling.noise`), so the best of all
parts is what one rank would have drawn from the whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch

from core.sampling import noise

if TYPE_CHECKING:
    from torch import Tensor

    from core.parallel.groups import Communicator
    from core.sampling.rows import SampleRows

NOBODY = 2**31 - 1  # more than any token's id


@runtime_checkable
class ShardKernels(Protocol):
    """What a kernel set may offer beside `SamplingKernels`, for parts of the vocabulary."""

    def best_of_shard(
        self,
        logits: Tensor,
        columns: Tensor,
        index: Tensor,
        positions: Tensor,
        floor: Tensor | None,
        first: int,
        size: int,
    ) -> Tensor:
        """What `best_of` gives; all but the last two parameters as in `SamplingKernels.draw`.

        first: the id of the first of logits [S, chunk]; size: how many of them, at least one, are
        of tokens.
        """

    def best_of_all(self, found: Tensor) -> tuple[Tensor, Tensor]:
        """What `best_of_all` gives."""


@dataclass(frozen=True)
class Shard:
    """One rank's part of the vocabulary: `size` tokens, perhaps none, from the id `first` on."""

    comm: Communicator
    first: int
    size: int

    def draw(self, logits: Tensor, rows: SampleRows, floor: Tensor | None) -> tuple[Tensor, Tensor]:
        """Logits [S, chunk] of this rank's tokens, then padding -> ids [S] int64, scores [S].

        The same on every rank. An id is -1, and its score not finite, where a row has no possible
        token, or NaN.
        """
        table = rows.table
        kernels: object = table.kernels
        if isinstance(kernels, ShardKernels) and self.size:
            found = kernels.best_of_shard(
                logits, table.columns, rows.index, rows.positions, floor, self.first, self.size
            )
        else:
            found = best_of(logits[:, : self.size], rows.temperature, rows.keys, floor, self.first)
        everyone = self.comm.gathered(found)
        if isinstance(kernels, ShardKernels):
            return kernels.best_of_all(everyone)
        return best_of_all(everyone)


def best_of(
    logits: Tensor, temperature: Tensor, keys: Tensor, floor: Tensor | None, first: int
) -> Tensor:
    """Scores of the tokens that rows draw, as bits of float32, and their ids: int32 [2, S].

    logits [S, N] are those of ids from `first` on; the rest is as in `noise.draw`. A score is
    logit / temperature + noise, or the logit where the temperature is 0; of a row with NaN +inf or
    NaN.
    """
    if logits.shape[1] == 0:
        nothing = torch.full((len(logits),), -math.inf, device=logits.device)
        return torch.stack([nothing.view(torch.int32), torch.full_like(nothing, 0).int() + NOBODY])
    ids, scores = noise.drawn(logits, temperature, keys, floor, first)
    return torch.stack([scores.float().view(torch.int32), ids.int()])


def best_of_all(found: Tensor) -> tuple[Tensor, Tensor]:
    """What `best_of` gave on each rank, [ranks, 2, S] -> ids [S] int64, scores [S] float32.

    Of equal scores the one with the lowest id wins. The id is -1 where the score is not finite.
    """
    scores, ids = found[:, 0].view(torch.float32), found[:, 1]
    scores = scores.nan_to_num(nan=math.inf, posinf=math.inf, neginf=-math.inf)
    best = scores.amax(0)
    winner = ids.masked_fill(scores != best, NOBODY).amin(0).long()
    return winner.masked_fill(~best.isfinite(), -1), best
