"""Grammars of answers that call tools, in the notation of llguidance: Lark, with schemas in it.

A tag that is one token of its own cannot be said by its letters there; it is said as `<tool_call>`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from core.sampling.structured import SPACES

if TYPE_CHECKING:
    from core.text import TokenizerLike

NAME_OF_TOKEN = re.compile(r"<[^<>\s]+>")

LINE = json.dumps("\n")

WHITE_SPACE = {"whitespace_flexible": True, "whitespace_pattern": SPACES}


def in_grammar(tag: str, tokenizer: TokenizerLike) -> str | None:
    """How a grammar says a tag. None where it cannot, or the answer's text would not show it."""
    ids = tokenizer.encode(tag, add_special_tokens=False)
    apart = tokenizer.added_ids | tokenizer.special_ids
    if apart.isdisjoint(ids):
        return json.dumps(tag)
    shown = len(ids) == 1 and ids[0] not in tokenizer.special_ids
    return tag if shown and NAME_OF_TOKEN.fullmatch(tag) else None


def calls(
    schemas: Mapping[str, dict[str, Any]], tags: tuple[str | None, str | None], *, several: bool
) -> str:
    """Calls of tools, from behind the first one's opening tag and new line to its closing tag, or
    the last one's if there may be `several`. They are written as models of this style are taught.

    `schemas`: of the arguments, by the tools' names. `tags`: as `in_grammar` has them; without them
    the answer is one call, and ends with it.
    """
    begin, end = tags
    closed = f" {LINE} {end}" if begin and end else ""
    further = f" ({LINE} {end} {LINE} {begin} {LINE} call)*" if several and closed else ""
    ways = []
    for number, (name, schema) in enumerate(schemas.items()):
        head = json.dumps(f'{{"name": {json.dumps(name)}, "arguments": ')
        ways.append(f'call_{number}: {head} {of_schema(schema)} "}}"')
    some = " | ".join(f"call_{number}" for number in range(len(ways)))
    return "\n".join([f"start: call{further}{closed}", f"call: {some}", *ways])


def or_calls(form: str, tags: tuple[str, str]) -> str:
    """Either what `form` says, or calls of tools, whose arguments are free."""
    begin, end = tags
    further = ""
    if NAME_OF_TOKEN.fullmatch(end):  # other tags are text themselves, whatever it is
        further = f" ({end} {LINE} {begin} TEXT)* {end}"
    return f"start: {form} | {begin} TEXT{further}\nTEXT: /(?s:.*)/"


def of_schema(schema: dict[str, Any]) -> str:
    """JSON of a schema, within a grammar."""
    ready = schema | {"x-guidance": WHITE_SPACE}
    return f"%json {json.dumps(ready, separators=(',', ':'))}"
