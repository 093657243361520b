"""Finding stop strings in a text that arrives in chunks of any size."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from weakref import WeakValueDictionary

from core.errors import UserError
from core.text.unicode import whole_text


class StopStrings:
    """An Aho-Corasick automaton over the characters of the stop strings.

    A state is the longest tail of the text that is a beginning of some stop string, so the cost is
    one step a character however many strings there are, and the state says how many characters
    have to be held back. Source: Aho and Corasick, "Efficient string matching", CACM 18(6), 1975.

    The text is read as if characters came one by one: the match that *ends* first wins, and of
    those that end together the longest, which leaks least. This does not depend on how the text
    is cut into tokens, nor on how many tokens come at once.
    """

    __slots__ = ("__weakref__", "_edges", "_fail", "first", "hold", "match", "strings")

    def __init__(self, strings: tuple[str, ...]) -> None:
        self.strings = strings
        self.first = frozenset(string[0] for string in strings)
        self.match: list[str | None] = [None]  # by state: the stop string that ends here
        self.hold = [0]  # by state: characters that may still become a stop string
        self._edges: list[dict[str, int]] = [{}]  # by state: next state by character
        self._fail = [0]  # by state: the state of the next shorter tail
        self._grow_tree()
        self._link_tails()

    def _grow_tree(self) -> None:
        for string in self.strings:
            state = 0
            for length, character in enumerate(string, start=1):
                following = self._edges[state].get(character)
                if following is None:
                    following = len(self._edges)
                    self._edges[state][character] = following
                    self._edges.append({})
                    self._fail.append(0)
                    self.match.append(None)
                    self.hold.append(length)
                state = following
            self.match[state] = string

    def _link_tails(self) -> None:
        queue = deque(self._edges[0].values())
        while queue:  # breadth first: shorter tails are complete before longer ones ask for them
            state = queue.popleft()
            tail = self._fail[state]
            if self.match[state] is None:
                self.match[state] = self.match[tail]
            if not self._edges[state]:  # a whole stop string; only a tail of it can still grow
                self.hold[state] = self.hold[tail]
            for character, following in self._edges[state].items():
                if state:
                    self._fail[following] = self._step(tail, character)
                queue.append(following)

    def _step(self, state: int, character: str) -> int:
        edges, fail = self._edges, self._fail
        while (following := edges[state].get(character)) is None:
            if not state:
                return 0
            state = fail[state]
        return following

    def scan(self, state: int, text: str, search: bool = True) -> tuple[int, int]:
        """Read `text` on from `state`.

        Returns the new state, and how many characters were read when a stop string ended, whose
        name is `match[state]`; -1 when none did. With `search` false, matches are passed over.
        """
        edges, fail, match = self._edges, self._fail, self.match
        for count, character in enumerate(text, start=1):
            while (following := edges[state].get(character)) is None and state:
                state = fail[state]
            state = following or 0
            if search and match[state] is not None:
                return state, count
        return state, -1


def stop_strings(stop: str | Sequence[str] | None) -> StopStrings | None:
    """The automaton for a request's `stop`, shared by answers with the same; None without any.

    Raises:
        UserError: an empty stop string, one that is no text, or one with half a character.
    """
    if not stop:
        if stop == "":
            raise UserError("stop is an empty string, which every text contains: leave it out.")
        return None
    strings = (stop,) if isinstance(stop, str) else tuple(stop)
    for number, string in enumerate(strings):
        if not whole_text(string, f"stop[{number}]"):
            raise UserError(f"stop[{number}] is empty, and every text contains that: leave it out.")
    if sum(map(len, strings)) <= CACHED_LENGTH:
        return _kept(strings)
    found = _in_use.get(strings)
    if found is None:
        found = _in_use[strings] = StopStrings(strings)
    return found


CACHED_LENGTH = 1_000  # characters; a state takes about 300 bytes, and strangers choose the strings

_kept = lru_cache(maxsize=256)(StopStrings)

_in_use: WeakValueDictionary[tuple[str, ...], StopStrings] = WeakValueDictionary()
"""The longer ones: they are shared by the answers that look for them, and go with the last."""
