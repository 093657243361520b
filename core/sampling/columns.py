"""A request's sampling parameters as words of 32 bits, so that a row of a table holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from core.sampling.noise import stream

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from core.types import Admission

FLOATS = (
    "temperature",  # 0 where it is greedy
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
INTEGERS = ("top_k", "prompt_length", "min_tokens", "stream0", "stream1")
COLUMN = {name: column for column, name in enumerate(FLOATS + INTEGERS)}

# What a row needs, as bits, so that the host can tell at a glance what a step needs.
RANDOM = 1  # a temperature above 0
TOP_K = 2
TOP_P = 4
MIN_P = 8
PENALTY = 16
LOGPROBS = 32
OTHER = 64  # anything else that changes logits: bias, bad words, allowed ids, min_tokens, plugins
HOST = 128  # a processor may look at its sampled ids on the host
TRUNCATION = TOP_K | TOP_P | MIN_P


def pack(admission: Admission) -> NDArray[np.int32]:
    """The row's columns [len(COLUMN)]; those of FLOATS are float32, seen as int32."""
    params = admission.params
    floats = np.array([getattr(params, name) for name in FLOATS], np.float32)
    if params.greedy:
        floats[COLUMN["temperature"]] = 0
    integers = (params.top_k, admission.prompt_length, params.min_tokens, *stream(admission.seed))
    return np.concatenate([floats.view(np.int32), np.array(integers, np.int32)])


def needs(admission: Admission) -> int:
    """The bits above. Truncation changes nothing for a greedy row, so it does not need it."""
    params = admission.params
    found = 0
    if not params.greedy:
        found |= RANDOM
        found |= TOP_K if params.top_k > 0 else 0
        found |= TOP_P if params.top_p < 1 else 0
        found |= MIN_P if params.min_p > 0 else 0
    if params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1:
        found |= PENALTY
    if params.logprobs is not None:
        found |= LOGPROBS
    if (
        params.logit_bias
        or params.bad_words
        or params.allowed_token_ids is not None
        or params.min_tokens
        or params.extra_args
        or params.structured_outputs is not None
    ):
        found |= OTHER
    if params.extra_args or params.structured_outputs is not None:
        found |= HOST
    return found
