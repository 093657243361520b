"""The form that one request asks for, and the grammar that says the same to llguidance."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core.errors import UserError
from core.sampling.structured import SPACES, StructuredOutputsParams, structured_outputs

if TYPE_CHECKING:
    from core.sampling.params import SamplingParams

KEY = "guided"
"""The key of `extra_args` that asks for a form; its value has the fields of structured_outputs."""

_LARK = re.compile(r"^[^\S\n]*+(%llguidance\b|start\s*+:)", re.MULTILINE)
"""A line that only Lark has. llguidance's own test looks on from every blank line to the last."""


@dataclass(frozen=True)
class Form:
    """What may be answered; equal ones have the same grammar."""

    kind: str
    text: str  # a schema, an expression, a list of choices in JSON, a grammar
    spaces: str = SPACES  # "": none

    def grammar(self) -> str:
        """What llguidance reads. UserError for a schema that is nested too deeply, and a grammar
        that is neither Lark's nor GBNF."""
        from llguidance import LLMatcher
        from llguidance.gbnf_to_lark import gbnf_to_lark

        if self.kind == "json":
            try:
                return LLMatcher.grammar_from_json_schema(
                    self.text,
                    overrides={
                        "whitespace_flexible": bool(self.spaces),
                        "whitespace_pattern": self.spaces or None,
                    },
                )
            except ValueError as error:
                raise UserError(f"the schema cannot be read: {error}.") from error
        if self.kind == "regex":
            return LLMatcher.grammar_from_regex(self.text)
        if self.kind == "choice":
            texts = " | ".join(map(json.dumps, json.loads(self.text)))
            return LLMatcher.grammar_from_lark(f"start: {texts}")
        try:
            lark = self.text if _LARK.search(self.text) else gbnf_to_lark(self.text)
            return LLMatcher.grammar_from_lark(lark)
        except Exception as error:
            raise UserError(f"the grammar cannot be read: {error}.") from error


def asks(params: SamplingParams) -> bool:
    """Whether a request asks for a form."""
    return params.structured_outputs is not None or KEY in (params.extra_args or ())


def form_of(params: SamplingParams) -> Form:
    """The form that a request asks for. UserError for one that is said twice, or wrongly."""
    asked = (params.extra_args or {}).get(KEY)
    if asked is not None and params.structured_outputs is not None:
        raise UserError(f"extra_args[{KEY!r}] and structured_outputs fix the form. Give one.")
    wanted = params.structured_outputs or structured_outputs(asked)
    if wanted.kind == "json_object":
        return Form("json", '{"type":"object"}', _spaces(wanted))
    if wanted.kind == "json":
        return Form("json", _schema(wanted), _spaces(wanted))
    value: Any = getattr(wanted, wanted.kind)
    return Form(wanted.kind, value if isinstance(value, str) else json.dumps(value))


def _spaces(wanted: StructuredOutputsParams) -> str:
    return "" if wanted.disable_any_whitespace else wanted.whitespace_pattern or SPACES


def _schema(wanted: StructuredOutputsParams) -> str:
    try:
        schema = json.loads(wanted.json) if isinstance(wanted.json, str) else wanted.json
        if wanted.disable_additional_properties:
            schema = _closed(schema)
        return json.dumps(schema, separators=(",", ":"))
    except RecursionError:
        raise UserError("the schema is nested too deeply. Flatten it.") from None
    except (TypeError, ValueError) as error:
        raise UserError(f"the schema is no JSON: {error}.") from error


def _closed(schema: Any) -> Any:
    """The schema, with objects that have no property which it does not name."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), Mapping) and "type" in schema:
        closed.setdefault("additionalProperties", False)
    return closed
