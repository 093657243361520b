"""What a request says about the form of its answer: JSON, a schema, an expression, a grammar."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec

from plugins.serve.protocol.errors import ApiError
from plugins.serve.protocol.reading import RequestBody

MOST = 2**20
"""Bytes of a form as JSON. The engine refuses smaller ones, but it has to look at them in between
its steps."""


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
    """vLLM's way, which has more forms: exactly one of the first five."""

    json: dict[str, Any] | str | None = None  # a schema
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None


class StructuredFields(RequestBody, kw_only=True):
    """The fields of a request that fix the form of its answer."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None


class Form(NamedTuple):
    """The form of an answer, as SamplingParams.structured_outputs has it."""

    values: dict[str, Any]
    field: str  # of the request that asked for it
    within: str = ""  # where in that field

    @property
    def name(self) -> str:
        """As messages call it."""
        return self.field + self.within


def wanted_form(request: StructuredFields) -> Form | None:
    """The form that is asked for; None: any text. ApiError where there are several."""
    found = [*_from_response_format(request.response_format)]
    if (outputs := request.structured_outputs) is not None:
        given = {name: v for name, v in msgspec.structs.asdict(outputs).items() if v is not None}
        found.append(Form(given, "structured_outputs"))
    for kind in ("json", "regex", "choice", "grammar"):
        if (value := getattr(request, f"guided_{kind}")) is not None:
            found.append(Form({kind: value}, f"guided_{kind}"))
    if len(found) > 1:
        raise ApiError(
            f"{' and '.join(form.field for form in found)} each fix the form of the answer. Choose "
            "one.",
            param=found[1].field,
            code="invalid_value",
        )
    for form in found:
        if (size := len(msgspec.json.encode(form.values))) > MOST:
            raise ApiError(
                f"{form.field} has {size} bytes, and {MOST} are the most that this server looks "
                "at. Shorten it.",
                param=form.field,
                code="invalid_value",
            )
    return found[0] if found else None


def _from_response_format(wanted: ResponseFormat | None) -> list[Form]:
    if wanted is None:
        return []
    name, described = "response_format", wanted.json_schema
    if wanted.type != "json_schema" and described is not None:
        raise ApiError(
            'response_format.json_schema needs type "json_schema".',
            param=name,
            code="invalid_value",
        )
    if wanted.type == "json_object":
        return [Form({"json_object": True}, name)]
    if wanted.type == "text":
        return []
    if described is None or described.schema is None:
        raise ApiError(
            "response_format.json_schema.schema is missing.", param=name, code="invalid_value"
        )
    return [Form({"json": described.schema}, name)]
