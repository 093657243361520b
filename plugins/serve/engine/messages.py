"""What the server's process and the engine's say to each other, and the news that come of it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
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


class Piece(msgspec.Struct, omit_defaults=True, gc=False):
    """News of one of the answers to a prompt; at most one for each answer and step."""

    index: int  # which of the n answers
    ids: list[int]  # new token ids
    logprobs: list[TokenLogprobs] | None = None  # one for each of `ids`, if they were asked for
    prompt_logprobs: list[TokenLogprobs] | None = None
    """Of the prompt's tokens from the second on: all of them, in answer 0's first piece."""
    cached: int = 0  # tokens of the prompt that the prefix cache gave; in an answer's first piece
    waited: float = 0.0  # seconds before it was computed; in an answer's first piece
    finish: str | None = None  # "stop", "length", "abort" or "error"; this is its last piece then
    stop_reason: int | None = None  # the id that ended it, the model's own included
    error: str | None = None  # the sentence behind "error"


class Submit(msgspec.Struct, tag="submit", array_like=True):
    """To the engine: run this prompt. Its answers are called `number`, `number + 1`, ..."""

    number: int
    ids: bytes  # int32
    params: dict[str, Any]  # the SamplingParams that were given
    priority: int
    salt: str | None


class Cancel(msgspec.Struct, tag="cancel", array_like=True):
    """To the engine: end one answer of the prompt `number`, or all."""

    number: int
    index: int | None


class Ask(msgspec.Struct, tag="ask", array_like=True):
    """To the engine: its counters, please."""


class Ready(msgspec.Struct, tag="ready", array_like=True):
    """From the engine, first of all."""

    info: EngineInfo


class Accepted(msgspec.Struct, tag="accepted", array_like=True):
    """From the engine: the prompt `number` is queued."""

    number: int


class Rejected(msgspec.Struct, tag="rejected", array_like=True):
    """From the engine: the prompt `number` cannot be run, with a sentence for each reason."""

    number: int
    sentences: list[str]


class News(msgspec.Struct, tag="news", array_like=True):
    """From the engine: what came of one step, as columns for the answers that got one id each."""

    answers: bytes | None  # int32; None: those of the message before
    ids: bytes  # int32, one for each of `answers`
    others: list[tuple[int, Piece]]  # of answers with more to tell


class Counters(msgspec.Struct, tag="counters", array_like=True):
    """From the engine: the answer to an `Ask`."""

    values: dict[str, int]


class Failed(msgspec.Struct, tag="failed", array_like=True):
    """From the engine, last of all: why it ends. `by_user`: it is a mistake that they can mend."""

    by_user: bool
    text: str


Request = Submit | Cancel | Ask
Report = Ready | Accepted | Rejected | News | Counters | Failed


def pack(numbers: Sequence[int]) -> bytes:
    """Whole numbers as int32. OverflowError or TypeError for anything else."""
    return array("i", numbers).tobytes()


def unpack(data: bytes) -> list[int]:
    """The numbers that `pack` packed."""
    numbers = array("i")
    numbers.frombytes(data)
    return numbers.tolist()
