"""Samples where each rank has the logits of its own tokens: gathers what is needed whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import torch

from core.interfaces import Sampled
from core.sampling import columns
from core.sampling.deferred import Deferred
from core.sampling.static_rows import StaticRows

if TYPE_CHECKING:
    from torch import Tensor

    from core.interfaces import Sampler
    from core.parallel.logits import CutLogits
    from core.sampling.rows import SampleRows

T = TypeVar("T")


def sample_parts(head: CutLogits, sampler: Sampler, part: Tensor, rows: SampleRows) -> Sampled:
    """What the sampler says of rows, of whose logits each rank has a part [S, chunk].

    Rows that ask for no more than a temperature are drawn from parts; the logits of the others are
    gathered. A captured step is of one kind.
    """
    wide = rows.needs & ~columns.RANDOM
    if head.shard is None or not sampler.shards or (wide and isinstance(rows, StaticRows)):
        return sampler(head.whole(part), rows)
    if not wide:
        return sampler(part, rows.on(head.shard))
    whole, plain = rows.needing(~columns.RANDOM), rows.sparing(~columns.RANDOM)
    if not len(plain):
        return sampler(head.whole(part), rows)
    found = [
        (whole, sampler(head.whole(whole.take(part)), whole)),
        (plain, sampler(plain.take(part), plain.on(head.shard))),
    ]
    ids = torch.empty(len(rows), dtype=torch.int64, device=part.device)
    logprobs, errors = [], []
    for some, sampled in found:
        some.put(ids, sampled.ids.long())
        assert some.picks is not None  # neither is all of them
        places = some.picks.tolist()
        logprobs.append((places, sampled.logprobs))
        errors.append((places, sampled.errors))
    return Sampled(ids, _put_back(logprobs), _put_back(errors))  # type: ignore[arg-type]


def _put_back(parts: Sequence[tuple[Sequence[int], Mapping[int, T] | None]]) -> Deferred[T] | None:
    """By the rows of all what is known by those of parts. Nothing is looked at before its time."""
    known = [(places, mapping) for places, mapping in parts if mapping is not None]
    if not known:
        return None
    make: Callable[[list[Tensor]], dict[int, T]] = lambda _: {  # noqa: E731
        places[s]: value for places, mapping in known for s, value in mapping.items()
    }
    return Deferred([], make)
