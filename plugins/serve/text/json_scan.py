"""Follows a JSON object character by character: where it ends, and where it stops being JSON."""

from __future__ import annotations

import re

_STRING_RUN = re.compile(r'[^"\\\x00-\x1f]+')
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_NUMBER_BEGUN = re.compile(r"-?(?:(?:0|[1-9]\d*)(?:\.\d*)?(?:(?<=\d)[eE][+-]?\d*)?)?")
_WORDS = ("true", "false", "null")
_SPACE = " \t\n\r"


class ObjectScanner:
    """Takes the text of one JSON object in parts.

    Attributes:
        done: the object is complete.
        broken: the text is no beginning of a JSON object.
    """

    def __init__(self) -> None:
        self.done = self.broken = False
        self._stack: list[str] = []  # "{" and "["
        self._expect = "object"  # what may come next; see `_step`
        self._word = ""  # a number or true, false, null that is not finished
        self._escape = 0  # 1 behind a backslash, 2 to 5 within \uXXXX

    def feed(self, text: str) -> int:
        """-> how many characters belong to the object; all, unless it ended or broke."""
        at = 0
        while at < len(text) and not (self.done or self.broken):
            at = self._step(text, at)
        return at

    def _step(self, text: str, at: int) -> int:
        """Take one character, or a run of a string. A character that is wrong is not taken."""
        if self._expect in ("string", "key string"):
            return self._in_string(text, at)
        character = text[at]
        if self._word:
            if (character.isalnum() and character.isascii()) or character in "+-.":
                return self._grow(character, at)
            if not self._whole_word():
                return self._break(at)
            self._word, self._expect = "", "after"
        if character in _SPACE and self._expect != "object":
            return at + 1
        match self._expect:
            case "object":
                if character != "{":
                    return self._break(at)
                self._push("{", "first key")
            case "first key" | "key":
                if character == '"':
                    self._expect = "key string"
                elif character == "}" and self._expect == "first key":
                    self._pop()
                else:
                    return self._break(at)
            case "colon":
                if character != ":":
                    return self._break(at)
                self._expect = "value"
            case "after":
                return self._after(character, at)
            case _:
                return self._value(character, at)
        return at + 1

    def _value(self, character: str, at: int) -> int:
        if character == '"':
            self._expect = "string"
        elif character == "{":
            self._push("{", "first key")
        elif character == "[":
            self._push("[", "first value")
        elif character == "]" and self._expect == "first value":
            self._pop()
        else:
            return self._grow(character, at)
        return at + 1

    def _after(self, character: str, at: int) -> int:
        inside = self._stack[-1]
        if character == ",":
            self._expect = "key" if inside == "{" else "value"
        elif character == ("}" if inside == "{" else "]"):
            self._pop()
        else:
            return self._break(at)
        return at + 1

    def _in_string(self, text: str, at: int) -> int:
        if not self._escape:
            run = _STRING_RUN.match(text, at)
            if run is not None:
                return run.end()
        character = text[at]
        if self._escape == 1:
            if character not in '"\\/bfnrtu':
                return self._break(at)
            self._escape = 2 if character == "u" else 0
        elif self._escape:
            if character not in "0123456789abcdefABCDEF":
                return self._break(at)
            self._escape = (self._escape + 1) % 6
        elif character == "\\":
            self._escape = 1
        elif character == '"':
            self._expect = "colon" if self._expect == "key string" else "after"
        else:
            return self._break(at)  # a control character
        return at + 1

    def _grow(self, character: str, at: int) -> int:
        if len(self._word) > 1 and (self._word[-2:] + character).isdigit():
            return at + 1  # behind two digits a further one changes nothing
        word = self._word + character
        if not (any(w.startswith(word) for w in _WORDS) or _NUMBER_BEGUN.fullmatch(word)):
            return self._break(at)
        self._word = word
        return at + 1

    def _whole_word(self) -> bool:
        return self._word in _WORDS or _NUMBER.fullmatch(self._word) is not None

    def _push(self, bracket: str, expect: str) -> None:
        self._stack.append(bracket)
        self._expect = expect

    def _pop(self) -> None:
        self._stack.pop()
        self._expect = "after"
        self.done = not self._stack

    def _break(self, at: int) -> int:
        self.broken = True
        return at
