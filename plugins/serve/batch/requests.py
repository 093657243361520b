"""The file of requests: looked through once before anything starts, and read line by line then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from core.errors import UserError
from plugins.serve.batch.ids import Ids
from plugins.serve.protocol.errors import ApiError

PATHS = ("/v1/chat/completions", "/v1/completions")
MOST_TOLD = 20  # mistakes; a file of another kind has one a line


class _Named(msgspec.Struct):
    custom_id: str


_NAMED = msgspec.json.Decoder(_Named)


class _Streamed(msgspec.Struct):
    stream: Any = None


@dataclass(frozen=True)
class Request:
    """One line: its name, and its fields as they stand there."""

    custom_id: str
    fields: dict[str, msgspec.Raw]

    def target(self) -> tuple[str, bytes]:
        """The path that it asks, and the body for it. ApiError when it is no request."""
        method, path = (self._text(name) for name in ("method", "url"))
        if method not in (None, "POST"):
            raise ApiError(f"method must be POST, not {method!r:.100}.", param="method")
        if path not in PATHS:
            said = "is missing" if path is None else f"is {path!r:.200}"
            raise ApiError(f"url {said}; it must be one of {', '.join(PATHS)}.", param="url")
        body = bytes(self.fields.get("body", b"null"))
        if not body.startswith(b"{"):
            raise ApiError("body must be a JSON object: the request itself.", param="body")
        try:
            streamed = msgspec.json.decode(body, type=_Streamed).stream
        except RecursionError:
            raise ApiError("body is nested too deeply.", param="body") from None
        if streamed:
            raise ApiError("stream must be left out: a batch has no streams.", param="stream")
        return path, body

    def _text(self, name: str) -> str | None:
        found = msgspec.json.decode(self.fields.get(name, b"null"))
        if found is not None and not isinstance(found, str):
            raise ApiError(f"{name} must be text.", param=name)
        return found


def survey(path: Path) -> Ids:
    """The names of all requests. UserError with every line that has none, or a name once more."""
    found, mistakes = Ids(), []
    for number, line in _lines(path):
        try:
            found.add(_name(line))
        except (msgspec.MsgspecError, ValueError) as error:
            why = str(error).replace("`", "")
            mistakes.append(f'{path}:{number} is no JSON object with a "custom_id": {why}.')
            if len(mistakes) > MOST_TOLD:
                break
    if repeated := found.repeated():
        mistakes += _repeats(path, repeated)
    if mistakes:
        more = ["... and there may be more."] if len(mistakes) > MOST_TOLD else []
        raise UserError("\n".join([*mistakes[:MOST_TOLD], *more]))
    if not len(found):
        raise UserError(f"run.input: {path} holds no request.")
    return found


def read(path: Path, done: Ids) -> Iterator[Request]:
    """The requests that are not done, in the order of the file, one at a time."""
    decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
    for number, line in _lines(path):
        try:
            fields = decode(line)
        except RecursionError:  # how deep is too deep depends on how deep we are
            raise UserError(f"{path}:{number} is nested too deeply.") from None
        name = msgspec.json.decode(fields["custom_id"], type=str)
        if name not in done:
            # a copy: a Raw keeps its whole line alive
            yield Request(name, {key: raw.copy() for key, raw in fields.items()})


def _name(line: bytes) -> str:
    """Of the request in a line. MsgspecError or ValueError if it has none."""
    try:
        return _NAMED.decode(line).custom_id
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _repeats(path: Path, repeated: Ids) -> list[str]:
    first: dict[str, int] = {}
    mistakes = []
    for number, line in _lines(path):
        try:
            name = _name(line)
        except (msgspec.MsgspecError, ValueError):
            continue
        if name in repeated and first.setdefault(name, number) != number:
            mistakes.append(
                f"{path}:{number} has the custom_id of line {first[name]}, {name!r:.200}. Each "
                "request needs its own: answers are told apart by it."
            )
            if len(mistakes) > MOST_TOLD:
                break
    return mistakes


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except OSError as error:
        raise UserError(f"run.input: {path} cannot be read: {error.strerror}.") from None
