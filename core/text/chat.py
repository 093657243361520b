"""Rendering chat messages with a checkpoint's Jinja template, in transformers' sandbox."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from core.errors import UserError
from core.text.messages import check_messages, with_parsed_arguments
from core.text.unicode import whole_text

USUAL_ROLES = frozenset({"system", "user", "assistant", "tool"})
OURS = frozenset({"conversations", "messages", "return_assistant_tokens_mask"})


def choose_template(
    templates: Mapping[str, str], wanted: str | None, with_tools: bool, source: str
) -> str:
    """The template to use: `wanted` is the name of one, or Jinja source; None takes the default.

    Raises:
        UserError: there is none, or `wanted` is neither a name nor a template.
    """
    if wanted is not None:
        if isinstance(wanted, str) and wanted in templates:
            return templates[wanted]
        if isinstance(wanted, str) and "{" in wanted:
            return wanted
        known = ", ".join(sorted(templates)) or "none"
        raise UserError(
            f"chat_template={wanted!r} is neither Jinja source nor one of the templates of "
            f"{source} ({known})."
        )
    if not templates:
        raise UserError(
            f"{source} has no chat template (chat_template.jinja, or chat_template in "
            "tokenizer_config.json): pass chat_template=..., or a plain prompt to generate."
        )
    if with_tools and "tool_use" in templates:
        return templates["tool_use"]
    if "default" not in templates:
        raise UserError(
            f"{source} has several chat templates and no default: pass chat_template= one of "
            f"{', '.join(sorted(templates))}."
        )
    return templates["default"]


def render_chat(
    template: str,
    messages: object,
    *,
    tools: Sequence[Any] | None,
    add_generation_prompt: bool | None,
    continue_final_message: bool | str,
    variables: Mapping[str, Any],
) -> str:
    """The prompt text of `messages`, exactly as transformers' `apply_chat_template` writes it.

    But for the arguments of earlier calls: a template that does not ask for text gets objects.
    `add_generation_prompt` None means: unless the final message is to be continued. `variables` are
    the special tokens and what the user gives the template, such as `enable_thinking`; names that
    it does not know are harmless. Templates run in a sandbox without files or imports, but may
    take long: whoever accepts templates from strangers has to limit that.

    Raises:
        UserError: wrong messages, or whatever the template raises, with the message's index.
    """
    chat = check_messages(messages)
    if not re.search(r"arguments\s+is\s+string", template):  # else it knows what to do with text
        chat = with_parsed_arguments(chat)
    if add_generation_prompt is None:
        add_generation_prompt = not continue_final_message
    if add_generation_prompt and continue_final_message:
        raise UserError(
            "add_generation_prompt opens a new message and continue_final_message goes on with the "
            "last one: choose one of the two."
        )
    if tools is not None and not isinstance(tools, list | tuple):
        raise UserError(f"tools must be a list of tools, not {type(tools).__name__}.")
    if taken := OURS & variables.keys():
        raise UserError(f"{', '.join(sorted(taken))} cannot be given to the chat template.")

    def render(some: list[dict[str, Any]], go_on: bool | str = False) -> str:
        from transformers.utils.chat_template_utils import render_jinja_template

        rendered, _ = render_jinja_template(
            conversations=[some],
            tools=list(tools) if tools else None,
            chat_template=template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=go_on,
            **variables,
        )
        return str(rendered[0])

    try:
        text = render(chat, continue_final_message)
    except Exception as error:  # a template is data: whatever it raises is about it or the messages
        raise UserError(_explain(error, chat, render)) from error
    for number, message in enumerate(chat):
        content = message["content"].strip()
        if message["role"] not in USUAL_ROLES and content not in text:
            raise UserError(
                f"messages[{number}]: the chat template leaves out messages of role "
                f"{message['role']!r}; use one of {', '.join(sorted(USUAL_ROLES))}."
            )
    return whole_text(text, "the rendered chat")


def _explain(error: Exception, chat: list[dict[str, Any]], render: Any) -> str:
    """Say what went wrong, and at which message unless the template fails with any."""
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if (line := getattr(error, "lineno", None)) is not None:
        return f"The chat template is not valid Jinja: {error} (line {line})."
    if type(error).__name__ in ("TemplateError", "UndefinedError", "ValueError"):
        reason = str(error)
    if _fails(render, [{"role": "user", "content": "Hello"}]):
        return f"The chat template fails: {reason}"
    low, high = 1, len(chat)
    while low < high:  # the shortest beginning of the chat that fails
        middle = (low + high) // 2
        if _fails(render, chat[:middle]):
            high = middle
        else:
            low = middle + 1
    role = chat[low - 1]["role"]
    return f"The chat template fails at messages[{low - 1}] (role {role!r}): {reason}"


def _fails(render: Any, chat: list[dict[str, Any]]) -> bool:
    try:
        render(chat)
    except Exception:
        return True
    return False
