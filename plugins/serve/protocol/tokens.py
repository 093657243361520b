"""Requests and answers of `/tokenize` and `/detokenize`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from plugins.serve.protocol.chat import Message, Tool
from plugins.serve.protocol.reading import RequestBody
from plugins.serve.protocol.refusals import Refusals


class TokenizeRequest(RequestBody, kw_only=True):
    """A prompt, or the messages of a chat: exactly one of them."""

    refused: ClassVar[Refusals] = {
        "chat_template": ("The model's own template is used.", ()),
        "mm_processor_kwargs": ("Messages are text.", ({},)),
    }

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(extra_json_schema={"minItems": 1})] | None = None
    tools: list[Tool] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class Tokens(msgspec.Struct, forbid_unknown_fields=True):
    """Token ids of a text."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(RequestBody, kw_only=True):
    """Token ids."""

    model: str | None = None
    tokens: Annotated[
        list[int],
        Meta(extra_json_schema={"items": {"type": "integer", "minimum": 0}}),
    ]


class Text(msgspec.Struct, forbid_unknown_fields=True):
    """The text of token ids, special tokens included."""

    prompt: str
