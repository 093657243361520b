"""Requests of `/v1/chat/completions`: messages, tools, and what they may hold."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from plugins.serve.protocol.errors import ApiError
from plugins.serve.protocol.refusals import CHAT, Refusals
from plugins.serve.protocol.sampling import INT32, MOST_LOGPROBS, GenerationRequest, bounds

MOST_TOOLS = 128
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class FunctionCall(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What an assistant called."""

    name: str
    arguments: str | dict[str, Any] | None = None  # JSON


class ToolCall(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One call in an assistant's message."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None


class TextPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of a message's content. Other types are refused by name."""

    type: Literal["text"] = "text"
    text: str


PARTS: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"$ref": "#/components/schemas/TextPart"}},
        {"type": "null"},
    ]
}


class Message(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One turn of a conversation."""

    role: Literal["developer", "system", "user", "assistant", "tool"]
    content: Annotated[str | list[dict[str, Any]] | None, Meta(extra_json_schema=PARTS)] = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # the same
    refusal: str | None = None
    annotations: list[Any] | None = None  # of no effect
    audio: None = None  # clients send back what they got, nulls included
    function_call: None = None


class Function(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a tool is called, does and takes."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None  # a JSON schema
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Something that the model may call."""

    type: Literal["function"]
    function: Function


class ToolName(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str


class NamedTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The tool that must be called."""

    type: Literal["function"] = "function"
    function: ToolName


class ChatRequest(GenerationRequest, kw_only=True):
    """Go on with a conversation."""

    refused: ClassVar[Refusals] = CHAT

    messages: Annotated[list[Message], Meta(extra_json_schema={"minItems": 1})]
    max_completion_tokens: Annotated[int, bounds(1, INT32)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, bounds(0, MOST_LOGPROBS)] | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    include_reasoning: bool | None = None

    def decided(self) -> dict[str, Any]:
        """SamplingParams of the fields that only chat has. ApiError for contradictions."""
        found: dict[str, Any] = {}
        if self.max_completion_tokens is not None:
            if self.max_tokens not in (None, self.max_completion_tokens):
                raise _wrong("max_completion_tokens", "contradicts max_tokens. Give one of them.")
            found["max_tokens"] = self.max_completion_tokens
        if self.top_logprobs and not self.logprobs:
            raise _wrong("top_logprobs", "needs logprobs to be true.")
        if self.logprobs:
            count = self.top_logprobs or 0
            if not 0 <= count <= MOST_LOGPROBS:
                raise _wrong("top_logprobs", f"is {count}: it must be from 0 to {MOST_LOGPROBS}.")
            found["logprobs"] = count
        return found

    def check(self) -> None:
        """ApiError for tools that cannot be called, or a choice of one that is not there."""
        names = [tool.function.name for tool in self.tools or ()]
        if len(names) > MOST_TOOLS:
            raise _wrong("tools", f"holds {len(names)} tools: {MOST_TOOLS} are the most.")
        for number, name in enumerate(names):
            if not NAME.fullmatch(name):
                raise _wrong(
                    "tools",
                    f"[{number}].function.name must be 1 to 64 letters, digits, dots, dashes or "
                    "underscores.",
                )
        choice = self.tool_choice
        if choice in ("required",) or isinstance(choice, NamedTool):
            if not names:
                raise _wrong("tool_choice", "asks for a call, and there are no tools.")
            if isinstance(choice, NamedTool) and choice.function.name not in names:
                raise _wrong(
                    "tool_choice",
                    f"names {choice.function.name[:100]!r}, which is none of the tools: "
                    f"{', '.join(names)}.",
                )

    @property
    def callable_tools(self) -> bool:
        """Whether the answer may call any."""
        return bool(self.tools) and self.tool_choice != "none"


def for_template(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages as chat templates expect them: texts stay as they were written.

    `developer` is what newer clients call the system; what a client calls `reasoning`, templates
    call `reasoning_content`; a refusal is what was said.
    """
    ready = []
    for message in messages:
        plain = {key: value for key, value in message.items() if value is not None}
        plain.pop("annotations", None)
        if plain.get("role") == "developer":
            plain["role"] = "system"
        if "reasoning" in plain:
            plain.setdefault("reasoning_content", plain.pop("reasoning"))
        if "refusal" in plain:
            refusal = plain.pop("refusal")
            plain.setdefault("content", refusal)
        if "tool_calls" in plain:
            plain["tool_calls"] = [_call(call) for call in plain["tool_calls"]]
        ready.append(plain)
    return ready


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    if function.get("arguments") in (None, ""):
        function["arguments"] = "{}"
    return {**call, "function": function}


def _wrong(field: str, sentence: str) -> ApiError:
    space = "" if sentence.startswith("[") else " "
    return ApiError(f"{field}{space}{sentence}", param=field, code="invalid_value")
