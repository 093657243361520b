"""The form that an answer shall have: vLLM's StructuredOutputsParams, with its names."""

from __future__ import annotations

import json as json_text
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from core.errors import UserError

SPACES = r" |\r?\n[ \t]{0,64}"
"""What may stand between the parts of JSON: a blank, or a new line and its indentation. White space
without a bound, which JSON allows, is where weak models never come to an end."""

KINDS = ("json", "regex", "choice", "grammar", "json_object")
_WITH_JSON = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")
_REFUSED = {"structural_tag": "is not supported. Say the whole form as a grammar"}


@dataclass(repr=False)
class StructuredOutputsParams:
    """One of the first five says which answers are possible; the rest belongs to the JSON ones.

    UserError with every mistake in the values. Whether a schema or grammar can be served is said
    by who serves it, when a request is added.

    >>> StructuredOutputsParams(choice=["yes", "no"])
    StructuredOutputsParams(choice=['yes', 'no'])
    """

    json: Mapping[str, Any] | str | None = None  # a JSON schema, as an object or as its text
    regex: str | None = None  # the whole answer matches it
    choice: list[str] | None = None  # the answer is one of these
    grammar: str | None = None  # in the notation of Lark or of GBNF
    json_object: bool | None = None  # any JSON object
    disable_any_whitespace: bool = False  # no white space between the parts of JSON
    disable_additional_properties: bool = False  # objects have the properties of the schema only
    whitespace_pattern: str | None = None  # what may stand between the parts of JSON

    def __post_init__(self) -> None:
        if mistakes := self._mistakes():
            raise UserError("\n".join(mistakes))

    def __repr__(self) -> str:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        shown = ", ".join(f"{k}={v!r}" for k, v in values.items() if v not in (None, False))
        return f"StructuredOutputsParams({shown})"

    @property
    def kind(self) -> str:
        """Which of the five it is."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    def _mistakes(self) -> list[str]:
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if not given:
            return [f"none of {', '.join(KINDS)} is given. Give one of them."]
        if len(given) > 1:
            return [f"{' and '.join(given)} each fix the form of the answer. Give one of them."]
        found = []
        if self.json is not None:
            found += _schema_mistakes(self.json)
        for name in ("regex", "grammar", "whitespace_pattern"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value):
                found.append(f"{name} must be text that is not empty.")
        if self.choice is not None:
            texts = isinstance(self.choice, list | tuple) and [*self.choice]
            if not texts or not all(isinstance(text, str) and text for text in texts):
                found.append("choice must be a list of texts that are not empty.")
            else:
                self.choice = texts
        if self.json_object not in (None, True):
            found.append("json_object must be True, or be left out.")
        for name in _WITH_JSON[:2]:
            if not isinstance(getattr(self, name), bool):
                found.append(f"{name} must be True or False.")
        if not (self.json or self.json_object):
            found += [
                f"{n} belongs to json or json_object." for n in _WITH_JSON if getattr(self, n)
            ]
        return found


def _schema_mistakes(schema: object) -> list[str]:
    if isinstance(schema, str):
        try:
            schema = json_text.loads(schema)
        except (ValueError, RecursionError) as error:
            return [f"json is text that is no JSON: {error}."]
    if isinstance(schema, Mapping):
        return []
    return ["json must be a JSON schema: a mapping, or the text of a JSON object."]


def structured_outputs(value: object) -> StructuredOutputsParams:
    """The form that a value means: one of the class, or a mapping with its fields.

    UserError with every mistake.
    """
    if isinstance(value, StructuredOutputsParams):
        if mistakes := value._mistakes():
            raise UserError("\n".join(mistakes))
        return value
    if not isinstance(value, Mapping):
        raise UserError(
            "it must be a StructuredOutputsParams or a mapping such as {'choice': ['yes', 'no']}."
        )
    names = [f.name for f in fields(StructuredOutputsParams)]
    wrong = []
    for name, given in value.items():
        if name in _REFUSED and given is not None:
            wrong.append(f"{name} {_REFUSED[name]}.")
        elif name not in names and name not in _REFUSED:
            near = get_close_matches(str(name), names, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(names)}."
            wrong.append(f"there is no {name!r}. {hint}")
    if wrong:
        raise UserError("\n".join(wrong))
    return StructuredOutputsParams(**{n: v for n, v in value.items() if n in names})
