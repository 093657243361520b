"""JSON bodies become structs: every mistake is named, all of them at once."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, TypeVar, get_type_hints

import msgspec

from plugins.serve.protocol.errors import ApiError

DEEPEST = 100
"""Lists and objects inside one another; a schema of a tool has a dozen."""

MOST_PARTS = 200_000
"""Lists, objects and their fields of one body. A million takes a second to read, in which no stream
goes on."""

MOST_MISTAKES = 10  # that are told

_NEXT_PART = re.compile(rb'(?:[^"\[{:]++|"(?:[^"\\]++|\\.)*+")*+[\[{:]', re.DOTALL)
"""From anywhere outside of a string to behind the next bracket, brace or colon outside of one."""


_HALF_AT_END = re.compile(rb'(?<!\\)(?:\\\\)*\\u[dD][89abAB][0-9a-fA-F]{2}[^"\\]{0,4}"[^"]{0,4}\Z')
"""The first half of a surrogate pair at the end of a string, so near the body's that no other half
could follow."""


class RequestBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request. A field that is null counts as left out, unless null is a value of its own.

    `refused` are fields that the protocol has and this server does not serve: a sentence for each,
    and the values that ask for nothing.
    """

    refused: ClassVar[Mapping[str, tuple[str, tuple[Any, ...]]]] = {}


Fields = TypeVar("Fields", bound=msgspec.Struct)


def parse(data: bytes) -> dict[str, Any]:
    """A body as a JSON object. ApiError when it is none."""
    if _has_too_many_parts(data):
        raise ApiError(
            f"The body has more than {MOST_PARTS} lists, objects and fields, the most that this "
            "server reads.",
            code="invalid_json",
        )
    try:
        found = msgspec.json.decode(data)
    except RecursionError:
        raise ApiError("The body is nested too deeply.", code="invalid_json") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise _unread(str(error), data) from None
    if not isinstance(found, dict):
        raise ApiError(f"The body must be a JSON object, not {_named(found)}.", code="invalid_json")
    if _depth(found) > DEEPEST:
        raise ApiError(
            f"The body is nested too deeply: {DEEPEST} levels are the most.", code="invalid_json"
        )
    return found


def read(raw: Mapping[str, Any], kind: type[Fields]) -> Fields:
    """The struct of a request. ApiError with every field that is unknown, missing or wrong."""
    types = _types(kind)
    values: dict[str, Any] = {}
    mistakes: list[tuple[str, str]] = []
    for name, value in raw.items():
        if len(mistakes) > MOST_MISTAKES:
            break
        if value is None and (name in types or name in _refused(kind)):
            continue
        if name in types:
            try:
                values[name] = msgspec.convert(value, types[name])
            except msgspec.ValidationError as error:
                mistakes.append((name, _wrong_type(name, str(error))))
            except RecursionError:
                mistakes.append((name, f"{name} is nested too deeply."))
        elif (sentence := _refusal(kind, name, value)) is not None:
            mistakes.append((name, sentence))
    for name in _required(kind):
        if raw.get(name) is None:
            mistakes.append((name, f"{name} is missing."))
    if mistakes:
        told = [sentence for _, sentence in mistakes[:MOST_MISTAKES]]
        if len(mistakes) > MOST_MISTAKES:
            told.append("There are further mistakes.")
        raise ApiError(
            "\n".join(told),
            param=mistakes[0][0][:100],
            code="invalid_value",
        )
    return kind(**values)


def _refused(kind: type[msgspec.Struct]) -> Mapping[str, tuple[str, tuple[Any, ...]]]:
    return kind.refused if issubclass(kind, RequestBody) else {}


def _refusal(kind: type[msgspec.Struct], name: str, value: Any) -> str | None:
    refused = _refused(kind)
    if name not in refused:
        name = name[:100]
        near = difflib.get_close_matches(name, _types(kind), n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        return f"{name} is not a field of this request.{hint}"
    sentence, harmless = refused[name]
    if any(value == v and isinstance(value, bool) == isinstance(v, bool) for v in harmless):
        return None
    return f"{name} is not supported. {sentence}".rstrip()


@cache
def _types(kind: type[msgspec.Struct]) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {field: hints[field] for field in kind.__struct_fields__}


@cache
def _required(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(field.name for field in msgspec.structs.fields(kind) if field.required)


def _wrong_type(name: str, complaint: str) -> str:
    """msgspec's "Expected `int`, got `str` - at `$[0]`" as a sentence about the field."""
    sentence, _, path = complaint.partition(" - at `$")
    where = re.sub(r"\[\.\.\.\]", "", path.rstrip("`"))
    return f"{name}{where}: {_plain(sentence[:1].lower() + sentence[1:])}."


def _unread(complaint: str, data: bytes) -> ApiError:
    """What msgspec says of a whole body. It takes half a pair near the end for the end itself."""
    if "out of range" in complaint:
        return ApiError("The body holds a number that is too large.", code="invalid_value")
    cut = "truncated" in complaint and _HALF_AT_END.search(data[-64:])
    if cut or "surrogate" in complaint:
        return ApiError(
            "The body holds half a character: an escape such as \\ud83d is one half of a surrogate "
            "pair, and the other half does not follow. Send the whole character.",
            code="invalid_value",
        )
    return ApiError(f"The body is not valid JSON: {_plain(complaint)}.", code="invalid_json")


def _plain(sentence: str) -> str:
    return sentence.replace("`", "").replace(" | ", " or ").rstrip(".")


def _named(value: object) -> str:
    names = {list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _has_too_many_parts(data: bytes) -> bool:
    if sum(map(data.count, (b"[", b"{", b":"))) <= MOST_PARTS:
        return False  # as ever; a long text may have more in its strings, so look again
    parts, at = 0, 0
    while parts <= MOST_PARTS and (found := _NEXT_PART.match(data, at)):
        parts, at = parts + 1, found.end()
    return parts > MOST_PARTS


def _depth(value: object) -> int:
    """How many lists and objects are inside one another; a level at a time, no recursion."""
    depth, level = 0, [value]
    while level:
        inner: list[object] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(v for v in item.values() if isinstance(v, dict | list))
            elif isinstance(item, list) and item and isinstance(item[0], int | str):
                # token ids or texts, mostly: the one pass in C that a long prompt is worth
                if not set(map(type, item)) <= {int, str}:
                    inner.extend(v for v in item if isinstance(v, dict | list))
            elif isinstance(item, list):
                inner.extend(v for v in item if isinstance(v, dict | list))
        level, depth = inner, depth + 1
    return depth
