"""Log probabilities of chosen tokens, and the likeliest tokens beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from core.types import TokenLogprobs

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 2**24  # logits that are taken to float32 at once


class Scores(NamedTuple):
    """What is known about N chosen tokens; all tensors are where the logits are."""

    logprob: Tensor  # [N] float32
    rank: Tensor  # [N] int64: 1, and one for each token with a larger logit
    top_ids: Tensor  # [N, K] int64, the best first
    top_logprobs: Tensor  # [N, K] float32


def scores(logits: Tensor, tokens: Tensor, count: int) -> Scores:
    """Log probabilities of tokens [N] under logits [N, V] of any float dtype, and the best `count`.

    Computed in float32. `count` -1 means all V. Of equal logits the lower id is the better one.
    """
    size = logits.shape[1]
    count = size if count < 0 else min(count, size)
    x = logits.float()
    total = x.logsumexp(-1, keepdim=True)
    chosen = x.gather(1, tokens[:, None])
    ids = best(x, count)
    return Scores(
        logprob=(chosen - total)[:, 0],
        rank=1 + (x > chosen).sum(-1),
        top_ids=ids,
        top_logprobs=x.gather(1, ids) - total,
    )


def best(logits: Tensor, count: int) -> Tensor:
    """Ids [N, count] of the largest of logits [N, V] float32; ties by the lowest id, always.

    topk alone takes any of equal values. The order of floats is that of their bits once those of
    negative numbers are turned around, and below these bits there is room for the id.
    """
    if count == 0:
        return torch.zeros(len(logits), 0, dtype=torch.int64, device=logits.device)
    bits = (logits + 0.0).view(torch.int32)  # -0.0 becomes 0.0
    bits ^= (bits >> 31) & 0x7FFFFFFF
    last = logits.shape[1] - 1
    ids = torch.arange(last, -1, -1, device=logits.device)
    packed = bits.to(torch.int64).bitwise_left_shift_(32).bitwise_or_(ids)
    return last - (packed.topk(count).values & 0xFFFFFFFF)


def listed(tokens: Tensor, found: Scores, counts: Sequence[int]) -> list[TokenLogprobs]:
    """Host values for N tokens; counts [N]: how many of the best each asked for, -1 for all."""
    columns = zip(
        tokens.tolist(),
        found.logprob.tolist(),
        found.rank.tolist(),
        found.top_ids.tolist(),
        found.top_logprobs.tolist(),
        counts,
        strict=True,
    )
    return [
        TokenLogprobs(
            token, logprob, rank, *((ids, tops) if count < 0 else (ids[:count], tops[:count]))
        )
        for token, logprob, rank, ids, tops, count in columns
    ]


def prompt_scores(logits: Tensor, tokens: Tensor, count: int) -> Scores:
    """`scores` of prompt tokens [N], N > 0, where logits [N, V] are those of the tokens before.

    Worked off in parts, so that little of the logits is in float32 at once.
    """
    step = max(1, BLOCK // logits.shape[1])
    starts = range(0, len(tokens), step)
    parts = [scores(logits[i : i + step], tokens[i : i + step], count) for i in starts]
    return Scores(*(torch.cat(column) for column in zip(*parts, strict=True)))
