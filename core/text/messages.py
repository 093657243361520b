"""The checks a list of chat messages passes before a template sees it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from core.errors import UserError
from core.text.unicode import whole_text

TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Kinds of parts that are text, and the key that it is under."""
INSTEAD_OF_CONTENT = ("tool_calls", "reasoning_content", "reasoning", "thinking")


def check_messages(messages: object) -> list[dict[str, Any]]:
    """Copy `messages` into the form that templates expect, or say which message is wrong and why.

    Keys whose value is None are dropped (clients send `"content": null`, templates would print
    "None"). A content of text parts becomes one text, a line each. An assistant's message that only
    calls tools gets an empty content.

    Raises:
        UserError: one line for each message that is wrong.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise UserError(
            f"messages must be a list of messages, not {type(messages).__name__}; for example "
            '[{"role": "user", "content": "Hello"}].'
        )
    if not messages:
        raise UserError(
            'messages is empty; give at least one, such as {"role": "user", "content": "Hello"}.'
        )
    checked, mistakes = [], []
    for number, message in enumerate(messages):
        try:
            checked.append(_check_message(message, f"messages[{number}]"))
        except UserError as error:
            mistakes.append(str(error))
    if mistakes:
        raise UserError("\n".join(mistakes))
    return checked


def _check_message(message: object, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise UserError(
            f"{where} is a {type(message).__name__}; a message is a mapping with role and content."
        )
    plain = {key: value for key, value in message.items() if value is not None}
    role = plain.get("role")
    if not isinstance(role, str) or not role:
        raise UserError(f"{where} has no role; it is one of system, user, assistant and tool.")
    if "content" in plain:
        plain["content"] = _text_of(plain["content"], f"{where}.content")
    elif role == "assistant" and any(plain.get(key) for key in INSTEAD_OF_CONTENT):
        plain["content"] = ""
    else:
        raise UserError(f"{where} (role {role!r}) has no content.")
    return plain


def with_parsed_arguments(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with the arguments of earlier calls as objects, where they are JSON in a text.

    OpenAI's clients send text; most templates were written for objects.
    """
    return [
        {**message, "tool_calls": [_parsed(call) for call in calls]}
        if isinstance(calls := message.get("tool_calls"), list | tuple)
        else message
        for message in messages
    ]


def _parsed(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call  # whatever it is, the model said it
    return {**call, "function": {**function, "arguments": arguments}}


def _text_of(content: object, where: str) -> str:
    if not isinstance(content, list | tuple):
        return whole_text(content, where)
    parts = []
    for number, part in enumerate(content):
        kind = part.get("type", "text") if isinstance(part, Mapping) else type(part).__name__
        if not isinstance(part, Mapping) or not isinstance(kind, str) or kind not in TEXTS:
            raise UserError(
                f"{where}[{number}] is of type {kind!r}; only text parts are supported."
            )
        key = TEXTS[kind]
        parts.append(whole_text(part.get(key), f"{where}[{number}].{key}"))
    return "\n".join(parts)
