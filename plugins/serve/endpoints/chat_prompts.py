"""The messages of a chat become a prompt, and it is settled how the answers are to be read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from plugins.serve.protocol.chat import ChatRequest, NamedTool, for_template
from plugins.serve.protocol.errors import ApiError
from plugins.serve.text.replies import Reading

if TYPE_CHECKING:
    from core.interfaces import Dialect
    from plugins.serve.endpoints.serving import Serving
    from plugins.serve.text.prompts import ChatPrompt


async def chat_prompt(
    serving: Serving, asked: ChatRequest, raw: Mapping[str, Any], *, formed: bool
) -> tuple[ChatPrompt, Reading]:
    """`raw` is the request as it came: templates print tools with their keys in that order.
    `formed`: the whole answer has a form, so there is no room for thoughts unless they are asked
    for.

    ApiError for messages that the template does not accept, and for calls that the model cannot
    make.
    """
    dialect = serving.dialect
    if asked.callable_tools and dialect.tool_call is None:
        raise ApiError(
            "This model's way to call tools is not known. Leave tools out.",
            param="tools",
            code="invalid_value",
        )
    begun = _begun(asked, dialect, formed)
    variables = dict(asked.chat_template_kwargs or {})
    if begun and dialect.thinking_switch is not None:
        variables[dialect.thinking_switch] = False  # a call that is asked for comes at once
    elif formed and dialect.thinking_switch is not None:
        variables.setdefault(dialect.thinking_switch, False)
    going_on = bool(asked.continue_final_message)
    if begun and going_on:
        raise ApiError(
            "tool_choice asks for a call, and continue_final_message for text. Choose one.",
            param="tool_choice",
            code="invalid_value",
        )
    prompt = await serving.prompts.chat(
        for_template(raw["messages"]),
        tools=raw["tools"] if asked.callable_tools else None,
        add_generation_prompt=asked.add_generation_prompt,
        continue_final_message=going_on,
        variables=variables,
        begun=begun,
    )
    reading = Reading(
        dialect,
        thinking=dialect.thinking is not None and not begun,
        opened=_opened(dialect, prompt.text, asked, raw),
        tools=asked.callable_tools,
        begun=begun,
        parallel=asked.parallel_tool_calls is not False
        and not isinstance(asked.tool_choice, NamedTool),
        thoughts=asked.include_reasoning is not False,
    )
    return prompt, reading


def _begun(asked: ChatRequest, dialect: Dialect, formed: bool) -> str:
    """How an answer that has to be a call begins: the prompt ends with it."""
    if dialect.tool_call is None or asked.tool_choice in (None, "none", "auto"):
        return ""
    front = dialect.tool_call[0] + "\n"
    if isinstance(asked.tool_choice, NamedTool):
        name = json.dumps(asked.tool_choice.function.name)
        front += f'{{"name": {name}, "arguments":'
        front += " " if formed else ""  # JSON that is held to a schema begins with its brace
    return front


def _opened(dialect: Dialect, prompt: str, asked: ChatRequest, raw: Mapping[str, Any]) -> bool:
    """Whether the answer begins inside of thoughts: some templates open them in the prompt."""
    if dialect.thinking is None:
        return False
    begin, end = dialect.thinking
    if asked.continue_final_message:
        last = raw["messages"][-1].get("content") or ""
        if not isinstance(last, str):
            last = "".join(part.get("text") or "" for part in last)
        return last.rfind(begin) > last.rfind(end)
    return prompt.rstrip().endswith(begin)
