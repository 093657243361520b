"""Answers of `/v1/chat/completions`: whole ones, and the events of a stream."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from plugins.serve.protocol.usage import Usage

FinishReason = Literal["stop", "length", "tool_calls"]


class CalledFunction(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A call. In a stream the name comes first, then the arguments piece by piece."""

    name: str | None = None
    arguments: str | None = None  # JSON as the model wrote it


class CalledTool(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One call of a tool; `index` is there in a stream only."""

    index: int | msgspec.UnsetType = msgspec.UNSET
    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunction | None = None


class TopLogprob(msgspec.Struct, forbid_unknown_fields=True):
    """One of the likeliest tokens of a position."""

    token: str
    logprob: float
    bytes: list[int] | None  # of the token, also where they are a part of a character


class TokenLogprob(msgspec.Struct, forbid_unknown_fields=True):
    """The token that was chosen, and the likeliest ones."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, forbid_unknown_fields=True):
    """One entry for each token of the answer: reasoning, calls and the end of text included."""

    content: list[TokenLogprob]
    refusal: None = None


class AnswerMessage(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What the model said."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning: str | msgspec.UnsetType = msgspec.UNSET  # what was thought
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET  # the same, by its older name
    tool_calls: list[CalledTool] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One of the n answers."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: int | str | None = None  # the stop string, or the id of stop_token_ids
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatCompletion(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A whole answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int  # seconds since 1970
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: list[dict[str, Any] | None] | msgspec.UnsetType = msgspec.UNSET


class Delta(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What is new."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None  # the same
    tool_calls: list[CalledTool] | None = None


class ChunkChoice(msgspec.Struct, forbid_unknown_fields=True):
    """What is new of one of the n answers."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatChunk(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: list[dict[str, Any] | None] | msgspec.UnsetType = msgspec.UNSET
