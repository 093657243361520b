"""The form that a chat's answer has: the one that is asked for, or that of calls."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from plugins.serve.protocol.chat import ChatRequest, NamedTool
from plugins.serve.protocol.errors import ApiError
from plugins.serve.protocol.structured import Form, wanted_form
from plugins.serve.text.call_grammars import calls, in_grammar, of_schema, or_calls

if TYPE_CHECKING:
    from plugins.serve.endpoints.serving import Serving

NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
"""What a tool takes that says nothing about it."""


def chat_form(serving: Serving, asked: ChatRequest) -> Form | None:
    """None: any text. An answer that has to be a call has a form behind how it begins.

    ApiError for several forms, and for one that cannot go along with tools.
    """
    form = wanted_form(asked)
    if not serving.holds_forms or not asked.callable_tools or serving.dialect.tool_call is None:
        return form
    if asked.tool_choice in (None, "auto"):
        return None if form is None else _or_calls(serving, form)
    if form is not None:
        raise ApiError(
            f"tool_choice asks for a call, and {form.field} for another form. Choose one.",
            param="tool_choice",
            code="invalid_value",
        )
    schemas = _schemas(asked)
    if isinstance(asked.tool_choice, NamedTool):
        name = asked.tool_choice.function.name
        return Form({"json": schemas[name]}, "tools", _place(asked, name))
    several = asked.parallel_tool_calls is not False
    return Form(
        {"grammar": calls(schemas, _tags(serving), several=several)}, "tools", _place(asked)
    )


def _schemas(asked: ChatRequest) -> dict[str, dict[str, Any]]:
    """Of the arguments that each tool takes. They are objects, whether a tool says so or not."""
    return {
        tool.function.name: NOTHING
        if tool.function.parameters is None
        else tool.function.parameters | {"type": "object"}
        for tool in asked.tools or ()
    }


def _place(asked: ChatRequest, chosen: str | None = None) -> str:
    """Where in `tools` the schema is, of the one that is chosen or the only one."""
    names = [tool.function.name for tool in asked.tools or ()]
    if chosen is None and len(names) > 1:
        return ""
    name = chosen or names[0]
    return f"[{names.index(name)}].function.parameters ({name})"


def _tags(serving: Serving) -> tuple[str | None, str | None]:
    begin, end = serving.dialect.tool_call or ("", "")
    tokenizer = serving.prompts.tokenizer
    return in_grammar(begin, tokenizer), in_grammar(end, tokenizer)


def _or_calls(serving: Serving, form: Form) -> Form:
    """The form binds what is said; tools may be called all the same."""
    begin, end = _tags(serving)
    said = _within_grammar(form.values)
    if begin is None or end is None or said is None:
        raise ApiError(
            f"{form.field} would make calls of tools impossible. Leave one of them out, or say "
            "tool_choice 'none'.",
            param=form.field,
            code="invalid_value",
        )
    return Form({"grammar": or_calls(said, (begin, end))}, form.field)


def _within_grammar(values: dict[str, Any]) -> str | None:
    """The form as a part of a grammar. None where it cannot be one."""
    match [*values.items()]:
        case [("json", dict(schema))]:
            return of_schema(schema)
        case [("json_object", True)]:
            return of_schema({"type": "object"})
        case [("choice", list(texts))] if texts and all(texts):
            return f"({' | '.join(map(json.dumps, texts))})"
    return None
