"""min_p, top_k and top_p as one number a row: the smallest logit that may still be drawn.

All three keep the tokens from some logit up, so none of them has to touch the vocabulary: the
draw skips what is below. They apply in vLLM's order, each to what the one before has left, with
probabilities after temperature. Tokens that tie with the last one kept are kept as well.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from core.sampling import columns

if TYPE_CHECKING:
    from torch import Tensor

    from core.sampling.rows import SampleRows

FEW = 256
"""How many of the best are looked at before all are sorted; mostly they hold a row's top_p."""


def floors(logits: Tensor, rows: SampleRows) -> Tensor:
    """The smallest logit kept [N], float32, for logits [N, V] float32. No row may be greedy."""
    best = logits.amax(-1)
    floor = torch.full_like(best, -math.inf)
    if rows.needs & columns.MIN_P:
        floor = best + rows.temperature * rows.column("min_p").log()
    counts: list[int] = rows.remember(
        (floors, "top_k"), lambda: [min(p.top_k, logits.shape[1]) for p in rows.params]
    )
    largest = None
    if most := max(counts):
        largest = descending(logits, most)
        k = rows.column("top_k").long().clamp(max=most)
        last = largest.gather(1, (k - 1).clamp(min=0)[:, None])[:, 0]
        floor = torch.where(k > 0, floor.maximum(last), floor)
    if rows.needs & columns.TOP_P:
        floor = _top_p(logits, rows, floor, best, largest if min(counts) else None)
    return floor


def _top_p(
    logits: Tensor, rows: SampleRows, floor: Tensor, best: Tensor, largest: Tensor | None
) -> Tensor:
    """`floor`, raised to the last of the likeliest tokens whose probabilities reach top_p.

    A token is kept if those above it have less than top_p together. `largest` [N, K] descending:
    given when every distinct logit from `floor` up is in it. Without it, whether a row has to be
    sorted is known when the logits are, so on CUDA the host waits for them.
    """
    top_p, scale, size = rows.column("top_p"), rows.temperature, logits.shape[1]
    if largest is not None:
        # what is missing there ties with the floor
        missing = (logits >= floor[:, None]).sum(-1) - (largest >= floor[:, None]).sum(-1)
        tie = _weights(floor[:, None], best, scale, floor)[:, 0]
        total = _weights(largest, best, scale, floor).sum(-1, dtype=torch.float64) + missing * tie
    else:
        above = floor if rows.needs & (columns.MIN_P | columns.TOP_K) else None
        total = _weights(logits, best, scale, above).sum(-1, dtype=torch.float64)
    goal = torch.where(top_p < 1, top_p.double() * total, 0)
    if largest is not None:
        border, _ = _border(largest, best, scale, floor, goal)
    else:
        border, reached = _border(descending(logits, min(FEW, size)), best, scale, floor, goal)
        if size > FEW and len(short := (~reached).nonzero()[:, 0]):
            everything = descending(logits[short], size)
            border[short], _ = _border(
                everything, best[short], scale[short], floor[short], goal[short]
            )
    return torch.where(top_p < 1, floor.maximum(border), floor)


def _border(
    largest: Tensor, best: Tensor, scale: Tensor, floor: Tensor, goal: Tensor
) -> tuple[Tensor, Tensor]:
    """The last logit before which the weight is below `goal` [N], and whether it is reached."""
    weight = _weights(largest, best, scale, floor).double()
    sums = weight.cumsum(-1)
    kept = (sums - weight < goal[:, None]) & (largest >= floor[:, None])
    last = (kept.sum(-1, keepdim=True) - 1).clamp_(min=0)
    return largest.gather(1, last)[:, 0], sums[:, -1] >= goal


def _weights(x: Tensor, best: Tensor, scale: Tensor, floor: Tensor | None) -> Tensor:
    """Probabilities of logits [N, K], but for a factor; 0 below the floor."""
    weights = (x - best[:, None]).div_(scale[:, None]).exp_()
    return weights if floor is None else weights.masked_fill_(x < floor[:, None], 0)


def descending(logits: Tensor, count: int) -> Tensor:
    """The `count` largest of each row [N, count], the largest first."""
    if count <= FEW:
        return logits.topk(count).values
    if logits.device.type == "cpu":
        # numpy sorts floats about thirty times as fast as torch
        return torch.from_numpy(-np.sort(-logits.numpy(), axis=-1)[:, :count])
    return logits.sort(-1, descending=True).values[:, :count]
