"""Divides an answer into what the model thinks and what it says, as the text arrives."""

from __future__ import annotations

from typing import NamedTuple


class Divided(NamedTuple):
    """New text of both kinds."""

    thought: str
    said: str


class ReasoningSplitter:
    """Text inside the tags is thought, what follows is said; tags and the newlines at them go.

    Only an answer that begins with the opening tag is divided: later ones are text. A tag may
    arrive in any number of parts.
    """

    def __init__(self, tags: tuple[str, str], *, opened: bool = False) -> None:
        """`opened`: the prompt ends with the opening tag, so the answer begins inside."""
        self._open, self._close = tags
        self._held = ""
        self._state = "first thought" if opened else "start"

    @property
    def passing(self) -> bool:
        """Whether all further text is said, unchanged."""
        return self._state == "said"

    def push(self, text: str) -> Divided:
        """Take in new text. -> what of it is decided."""
        if self._state == "said":
            return Divided("", text)
        self._held += text
        if self._state == "thought" and not text.strip("\n"):
            return Divided("", "")  # newlines wait for what comes next
        thought = said = ""
        if self._state == "start":
            begun = self._held.lstrip()
            if begun.startswith(self._open):
                self._state, self._held = "first thought", begun[len(self._open) :]
            elif self._open.startswith(begun):
                return Divided("", "")
            else:
                self._state, said = "said", self._held
                self._held = ""
        if self._state == "first thought":
            self._held = self._held.lstrip("\n")
            if self._held:
                self._state = "thought"
        if self._state == "thought":
            thought = self._think()
        if self._state == "first said":
            said = self._held.lstrip("\n")
            self._held = ""
            if said:
                self._state = "said"
        return Divided(thought, said)

    def _think(self) -> str:
        held = self._held
        end = held.find(self._close)
        if end >= 0:
            self._state, self._held = "first said", held[end + len(self._close) :]
            return held[:end].rstrip("\n")
        cut = len(held) - begun_tag(held, self._close)
        cut = len(held[:cut].rstrip("\n"))  # newlines go if the closing tag comes next
        self._held = held[cut:]
        return held[:cut]

    def finish(self) -> Divided:
        """The answer has ended. -> what was undecided."""
        held, self._held = self._held, ""
        if self._state in ("thought", "first thought"):
            return Divided(held, "")
        return Divided("", held)


def begun_tag(text: str, tag: str) -> int:
    """How many characters at the end of `text` may be the beginning of `tag`."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0
