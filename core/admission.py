"""Why a request cannot run: everything is asked before anything is queued."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from core.errors import UserError
from core.generation import most_tokens
from core.sampling.param_checks import are_ids
from core.sampling.sendable import unsendable

if TYPE_CHECKING:
    from core.engine import Engine
    from core.sampling.params import SamplingParams


def reasons(engine: Engine, prompt: Sequence[int], params: SamplingParams) -> list[str]:
    """A sentence for each reason; empty when the request can run."""
    limits = engine.limits
    found: list[str] = []
    if not prompt:
        found.append("the prompt is empty. Give at least one token.")
    elif (wrong := _not_ids(prompt, limits.vocab_size)) is not None:
        at, value = wrong
        found.append(
            f"token {at} of the prompt is {value!r}. Token ids are whole numbers "
            f"from 0 to {limits.vocab_size - 1}."
        )
    if len(prompt) >= limits.max_length:
        found.append(
            f"the prompt has {len(prompt)} tokens, and a request may hold {limits.max_length} "
            "with at least one for the answer. Shorten it, or raise model.max_length "
            "(and cache.pages or cache.memory with it, if those set the limit)."
        )
    budget = limits.max_num_batched_tokens
    if not getattr(engine.scheduler.options, "chunked_prefill", True) and len(prompt) > budget:
        found.append(
            f"the prompt has {len(prompt)} tokens, and without chunked prefill a step computes "
            f"{budget} at most. Raise scheduler.max_num_batched_tokens."
        )
    try:
        params.check(limits.vocab_size, engine.tokenizer)
    except UserError as error:
        return found + str(error).splitlines()  # nobody else can read what is no parameter
    if engine.config.parallel.tensor > 1 and (reason := unsendable(params)) is not None:
        found.append(reason)
    if params.stop and engine.tokenizer is None:
        found.append("stop strings need a tokenizer. Use stop_token_ids, or set model.tokenizer.")
    if not found:
        limit = most_tokens(prompt, params, limits)
        found += engine.observers.reasons(params, len(prompt), limit)
    if params.structured_outputs is not None and not engine.sampler.structured:
        found.append(
            f"structured_outputs: the sampler {engine.config.sampler.use!r} holds no answer to a "
            "form. Leave it out, or choose the sampler default."
        )
    found += engine.sampler.accepts(engine.observers.others(params))
    return found


def _not_ids(prompt: Sequence[int], vocab_size: int) -> tuple[int, object] | None:
    if are_ids(prompt, vocab_size):
        return None
    for at, value in enumerate(prompt):
        if type(value) is not int or not 0 <= value < vocab_size:
            return at, value
    return None
