"""What the server's process and the engine's say to each other, and the news that come of it."""

from __future__ import annotations

from typing import Any

import msgspec

from core.types import TokenLogprobs


class EngineInfo(msgspec.Struct, frozen=True):
    """What a server must know of its engine; said once, when the engine is ready."""

    model: str  # the name that requests use
    max_length: int  # the most tokens of a request, prompt and answer together
    vocab_size: int
    eos_ids: list[int]
    reads_priority: bool  # whether the scheduler looks at priorities
    defaults: dict[str, Any]  # generation_config.json: `SamplingParams.from_defaults` reads it
    version: str  # of Plait
    limits: dict[str, Any]  # core.types.Limits


class Piece(msgspec.Struct):
    """News of one of the answers to a prompt; at most one for each answer and step."""

    index: int  # which of the n answers
    ids: list[int]  # new token ids
    logprobs: list[TokenLogprobs] | None = None  # one for each of `ids`, if they were asked for
    prompt_logprobs: list[TokenLogprobs] | None = None
    """Of the prompt's tokens from the second on: all of them, in answer 0's first piece."""
    cached: int = 0  # tokens of the prompt that the prefix cache gave; in an answer's first piece
    finish: str | None = None  # "stop", "length", "abort" or "error"; this is its last piece then
    stop_reason: int | None = None  # the id that ended it, the model's own included
    error: str | None = None  # the sentence behind "error"
