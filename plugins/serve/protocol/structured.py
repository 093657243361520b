"""What a request says about the form of its answer: JSON, a schema, an expression, a grammar."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec

from plugins.serve.protocol.errors import ApiError
from plugins.serve.protocol.reading import RequestBody


class JsonSchema(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A schema and its name."""

    name: str
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's way to ask for JSON."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's way, which has more forms. Exactly one of them."""

    json: dict[str, Any] | str | None = None  # a schema
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


class StructuredFields(RequestBody, kw_only=True):
    """The fields of a request that fix the form of its answer."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None


class Structure(NamedTuple):
    """The form of an answer."""

    kind: Literal["json", "json_object", "regex", "choice", "grammar"]
    value: Any  # a schema (object or text), True, an expression, the choices, a grammar
    field: str  # of the request that asked for it


def wanted_structure(request: StructuredFields) -> Structure | None:
    """The one form that is asked for; None: any text. ApiError where there are several."""
    found: list[Structure] = []
    form = request.response_format
    if form is not None and form.type == "json_object":
        found.append(Structure("json_object", True, "response_format"))
    elif form is not None and form.type == "json_schema":
        if form.json_schema is None or form.json_schema.schema is None:
            raise ApiError(
                "response_format.json_schema.schema is missing.",
                param="response_format",
                code="invalid_value",
            )
        found.append(Structure("json", form.json_schema.schema, "response_format"))
    elif form is not None and form.json_schema is not None:
        raise ApiError(
            'response_format.json_schema needs type "json_schema".',
            param="response_format",
            code="invalid_value",
        )
    if (outputs := request.structured_outputs) is not None:
        for kind in ("json", "json_object", "regex", "choice", "grammar"):
            value = getattr(outputs, kind)
            if value is not None and value is not False:
                found.append(Structure(kind, value, "structured_outputs"))
    for kind in ("json", "regex", "choice", "grammar"):
        if (value := getattr(request, f"guided_{kind}")) is not None:
            found.append(Structure(kind, value, f"guided_{kind}"))
    if len(found) > 1:
        raise ApiError(
            f"{' and '.join(f.field for f in found)} each fix the form of the answer. Choose one.",
            param=found[1].field,
            code="invalid_value",
        )
    return found[0] if found else None
