"""Samples row by row, so that a sampler that stumbles over one request harms no other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from core.interfaces import Sampled
from core.plugins.blame import brief

if TYPE_CHECKING:
    from torch import Tensor

    from core.interfaces import Sampler
    from core.sampling.rows import SampleRows
    from core.types import TokenLogprobs


def one_by_one(sampler: Sampler, logits: Tensor, rows: SampleRows) -> Sampled:
    """What the sampler says of each row [1, V] alone. A row over which it raises gets an error."""
    ids = torch.zeros(len(rows), dtype=torch.int64, device=logits.device)
    logprobs: dict[int, list[TokenLogprobs]] = {}
    errors: dict[int, str] = {}
    for s in range(len(rows)):
        part = rows.subset([s])
        try:
            one = sampler(part.take(logits), part)
            ids[s] = one.ids[0]
            if one.logprobs:
                logprobs[s] = one.logprobs[0]
            if one.errors:
                errors[s] = one.errors[0]
        except Exception as error:
            errors[s] = f"the sampler failed. {brief(error)}"
    return Sampled(ids, logprobs, errors)
