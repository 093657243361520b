"""What a sampler answers once it has drawn: ids, and a sentence for each row without a token."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from core.interfaces.sampling import Sampled
from core.sampling.deferred import Deferred

if TYPE_CHECKING:
    from torch import Tensor


def outcome(ids: Tensor, logits: Tensor) -> Sampled:
    """Drawn ids [S], with an error for each row whose token has no finite logit in logits [S, V].

    That is every row where all logits are -inf, or one is NaN: `SampleRows.draw` takes no finite
    logit there. Pass the logits that were drawn from. Such a row gets the id 0, and its request
    ends with the sentence; the others go on. Nothing waits for the device. In a step that is being
    captured the ids stay as they are, for the runner to judge.
    """
    if ids.is_cuda and torch.cuda.is_current_stream_capturing():
        return Sampled(ids)
    value = logits.gather(1, ids.long().clamp(min=0)[:, None])[:, 0].float()
    value = value.masked_fill(ids < 0, math.nan)
    return Sampled(ids.masked_fill(~value.isfinite(), 0), errors=errors(value))


def errors(value: Tensor, blamed: Mapping[int, str] | None = None) -> Deferred[str]:
    """By s, why a row has no token; `value` [S] float32 holds the logits of the drawn ones.

    `blamed`, by s: sentences for rows that failed on the way here, whose value is NaN.
    """
    known = dict(blamed or {})

    def make(host: list[Tensor]) -> dict[int, str]:
        return {
            s: known.get(s) or _reason(x)
            for s, x in enumerate(host[0].tolist())
            if not math.isfinite(x)
        }

    return Deferred([value], make)


def _reason(value: float) -> str:
    if value == -math.inf:
        return (
            "no token is possible: the logits are -inf everywhere. Loosen allowed_token_ids, "
            "bad_words, min_tokens or what else forbids tokens."
        )
    return (
        f"no token can be drawn: among the logits is {value}. Check the weights and the dtype; "
        "an extreme logit_bias or penalty can do it, too."
    )
