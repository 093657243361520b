"""Finds calls of tools in a text as it arrives: <tool_call>{"name": ..., "arguments": ...}</...>.

The style is that of Hermes, which Qwen3 has too.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from plugins.serve.text.json_scan import ObjectScanner
from plugins.serve.text.reasoning import begun_tag

_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\\x00-\x1f]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*'
    r"(?=\{)"
)
LONGEST_HEAD = 256
"""Characters in front of a call's arguments, which are read anew whenever text comes; the name of a
tool has 64 at most."""


class Found(NamedTuple):
    """A piece of an answer. `call` None: text; else which call, and `name` where it begins."""

    text: str = ""  # text, or a part of the call's arguments
    call: int | None = None
    name: str | None = None


class ToolCallParser:
    """Tells text from calls; tags and white space around calls go.

    What is no call is text, tags included. When it is `live`, the arguments of a call are handed
    out as they come: should they stop being JSON, the call ends there, and what follows is text.
    Otherwise a call is handed out as a whole. Either way no argument is read twice.
    """

    def __init__(self, tags: tuple[str, str], *, live: bool) -> None:
        self._open, self._close = tags
        self._live = live
        self._held = ""
        self._state = "text"  # "text", "call", "arguments" or "rest": of a call, until its tag
        self._head: re.Match[str] | None = None  # of the call, if it has the usual one
        self._scanner = ObjectScanner()  # of the arguments behind it
        self._read = 0  # characters of the call up to where the scanner is
        self._looked = 0  # characters of the call in which its closing tag does not begin
        self._behind = False  # a call, with nothing but white space since
        self.calls = 0
        self.ended = 0  # calls whose closing tag was seen

    def push(self, text: str) -> list[Found]:
        """Take in new text. -> what of it is decided."""
        self._held += text
        found: list[Found] = []
        while self._step(found):
            pass
        return found

    def finish(self) -> list[Found]:
        """The answer has ended. -> what was undecided; a call that is cut off keeps what it has."""
        found: list[Found] = []
        if self._state == "call" and not self._whole_call(self._held, found, cut_off=True):
            found.append(Found(self._open + self._held))
        elif self._state == "text" and (self._held.strip() or not self.calls):
            found.append(Found(self._held))
        self._held = ""
        return [f for f in found if f != Found()]

    def _step(self, found: list[Found]) -> bool:
        """-> whether there is more to do with what is held."""
        match self._state:
            case "text":
                return self._text(found)
            case "call":
                return self._call(found)
            case "arguments":
                return self._arguments(found)
        return self._rest()

    def _text(self, found: list[Found]) -> bool:
        held = self._held
        if self._behind:
            self._held = held = held.lstrip()
            self._behind = not held
        start = held.find(self._open)
        if start >= 0:
            before = held[:start].rstrip()
            if before:
                found.append(Found(before))
            self._state, self._held = "call", held[start + len(self._open) :]
            self._head, self._scanner, self._looked = None, ObjectScanner(), 0
            return True
        cut = len(held) - begun_tag(held, self._open)
        cut = len(held[:cut].rstrip())  # white space goes if a call comes next
        if cut:
            found.append(Found(held[:cut]))
            self._held = held[cut:]
        return False

    def _call(self, found: list[Found]) -> bool:
        """At the front of a call, whose end may not be there yet."""
        held, scanner = self._held, self._scanner
        if self._head is None and (head := _HEAD.match(held, 0, LONGEST_HEAD)) is not None:
            self._head, self._read = head, head.end()
            if self._live and (name := _name(head)) is not None:
                found.append(Found("", self.calls, name))
                self.calls += 1
                self._state, self._held = "arguments", held[head.end() :]
                return True
        if self._head is not None and not (scanner.done or scanner.broken):
            self._read += scanner.feed(held[self._read :])
            # strings of the arguments may hold a closing tag, too
            self._looked = 0 if scanner.broken else self._read
        end = held.find(self._close, self._looked)
        if end < 0:
            self._looked = max(self._looked, len(held) - len(self._close) + 1)
            return False
        body, self._held = held[:end], held[end + len(self._close) :]
        self._behind = self._whole_call(body, found)
        self.ended += self._behind
        if not self._behind:
            found.append(Found(self._open + body + self._close))
        self._state = "text"
        return True

    def _arguments(self, found: list[Found]) -> bool:
        taken = self._scanner.feed(self._held)
        if taken:
            found.append(Found(self._held[:taken], self.calls - 1))
            self._held = self._held[taken:]
        if self._scanner.broken:
            self._state = "text"
        elif self._scanner.done:
            self._state = "rest"
        return self._scanner.broken or self._scanner.done

    def _rest(self) -> bool:
        """Behind the arguments: a brace that closes the call, and its tag."""
        end = self._held.find(self._close)
        if end < 0:
            self._held = self._held[-len(self._close) :]
            return False
        self._state, self._held = "text", self._held[end + len(self._close) :]
        self._behind = True
        self.ended += 1
        return True

    def _whole_call(self, body: str, found: list[Found], cut_off: bool = False) -> bool:
        """Add the call that `body` is, if it is one."""
        call = self._in_order(body, cut_off) or _any_order(body)
        if call is None:
            return False
        name, arguments = call
        found += [Found("", self.calls, name), Found(arguments, self.calls)]
        self.calls += 1
        return True

    def _in_order(self, body: str, cut_off: bool) -> tuple[str, str] | None:
        """Name first, then the arguments, which are kept as they were written."""
        head, scanner = self._head, self._scanner
        if head is None or (name := _name(head)) is None:
            return None
        if scanner.broken or not (scanner.done or cut_off):
            return None
        return name, body[head.end() : self._read]


def _any_order(body: str) -> tuple[str, str] | None:
    """Any other JSON object that has a name and arguments."""
    try:
        call = json.loads(body)
    except (ValueError, RecursionError):
        return None
    name = call.get("name") if isinstance(call, dict) else None
    if not isinstance(name, str) or not name:
        return None
    arguments = call.get("arguments", call.get("parameters"))
    if isinstance(arguments, str):
        return name, arguments
    if arguments is not None and not isinstance(arguments, dict):
        return None
    return name, json.dumps(arguments or {}, ensure_ascii=False)


def _name(head: re.Match[str]) -> str | None:
    try:
        name: str = json.loads(head[1])
    except ValueError:
        return None
    return name or None
