"""Requests and answers of `/v1/completions`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from plugins.serve.protocol.errors import ApiError
from plugins.serve.protocol.refusals import COMPLETIONS, Refusals
from plugins.serve.protocol.sampling import GenerationRequest, bounds
from plugins.serve.protocol.usage import Usage

MOST_PROMPTS = 1024
USUAL_TOKENS = 16  # of an answer, where neither the request nor the model says; OpenAI's and vLLM's

PROMPT_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}},
        {"type": "array", "items": {"type": "integer"}},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
    ]
}


class CompletionRequest(GenerationRequest, kw_only=True):
    """Continue a text, or several."""

    refused: ClassVar[Refusals] = COMPLETIONS

    prompt: Annotated[str | list[str | int | list[int]], Meta(extra_json_schema=PROMPT_SCHEMA)]
    echo: bool | None = None  # the prompt again, before its continuation
    logprobs: Annotated[int, bounds(0, 20)] | None = None
    best_of: Annotated[int, bounds(1, 128)] | None = None

    def prompts(self) -> list[str | list[int]]:
        """One prompt or several: texts, or token ids. ApiError for a mixture."""
        given = self.prompt
        if isinstance(given, str):
            return [given]
        kinds = set(map(type, given))
        if kinds == {int}:
            return [given]  # type: ignore[list-item]
        if len(kinds) > 1:
            raise ApiError(
                "prompt must be text, a list of texts, token ids, or a list of lists of token ids; "
                "this one mixes them.",
                param="prompt",
                code="invalid_value",
            )
        if not given:
            raise ApiError("prompt is empty.", param="prompt", code="invalid_value")
        if len(given) > MOST_PROMPTS:
            raise ApiError(
                f"prompt holds {len(given)} prompts; {MOST_PROMPTS} are the most in one request.",
                param="prompt",
                code="invalid_value",
            )
        return given  # type: ignore[return-value]

    def check(self) -> None:
        """ApiError for `best_of`: all answers are returned, none is chosen."""
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ApiError(
                f"best_of is {self.best_of}: it must be the same as n, which is {self.n or 1}. All "
                "n answers are returned; choose by their log probabilities.",
                param="best_of",
                code="invalid_value",
            )


class CompletionLogprobs(msgspec.Struct, forbid_unknown_fields=True):
    """One entry a token. With `echo` the first is a token of the prompt, which has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]  # where the token begins, in characters of the text


class CompletionChoice(msgspec.Struct, forbid_unknown_fields=True):
    """One answer, or what is new of it in an event of a stream."""

    index: int  # prompts one after the other, n answers each
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: int | str | None = None  # the stop string, or the id of stop_token_ids
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: list[dict[str, Any] | None] | msgspec.UnsetType = msgspec.UNSET


class Completion(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A whole answer; in a stream, one event."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int  # seconds since 1970
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
