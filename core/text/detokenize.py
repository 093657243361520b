"""The text of one request as its ids arrive, with stop strings held back until they are decided."""

from __future__ import annotations

from collections.abc import Sequence

from core.text.interface import TokenizerLike
from core.text.stops import stop_strings
from core.text.streams import open_stream


class Detokenizer:
    """Turns one request's output ids into text that can be sent at once and never taken back.

    Without a stop string, all that `push` and `finish` return, joined, is `tokenizer.decode` of all
    ids. With stop strings the text ends before the first one (behind it, with
    `include_stop_str_in_output`); the first is the one that is complete first, and of several
    complete at the same character the longest. A tail is held back exactly as long as it may still
    become a stop string. A token such as `</think>` is sent whole or not yet.

    `prompt_ids` matter to vocabularies that treat the first word of a text differently
    (SentencePiece): then the output reads as the prompt's continuation. Byte-level vocabularies do
    not look at them. `spaces_between_special_tokens=False` leaves out the space that decoders of
    word-piece kind put between two added tokens.

    Attributes:
        stopped: the stop string that was found, or None. Later ids give no text.
        consumed: ids taken in, up to the one that completed the stop string.

    Raises:
        UserError: a stop string that is empty, no text, or holds half a character.
    """

    __slots__ = (
        "_added",
        "_closed",
        "_held",
        "_include_stop",
        "_state",
        "_step",
        "_stops",
        "_stream",
        "_whole",
        "consumed",
        "stopped",
    )

    def __init__(
        self,
        tokenizer: TokenizerLike,
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        stop: str | Sequence[str] | None = (),
        include_stop_str_in_output: bool = False,
        prompt_ids: Sequence[int] = (),
    ) -> None:
        self._stream = open_stream(
            tokenizer, skip_special_tokens, spaces_between_special_tokens, prompt_ids
        )
        self._step = self._stream.step
        self._stops = stop_strings(stop)
        self._added = tokenizer.added_ids
        self._include_stop = include_stop_str_in_output
        self._state = 0  # of the automaton; 0 means that nothing is held back
        self._held = ""
        self._whole: list[tuple[int, int]] = []  # [start, end) of added tokens in the held text
        self._closed = False
        self.stopped: str | None = None
        self.consumed = 0

    def push(self, ids: Sequence[int], check_stop: bool = True) -> str:
        """Take in new ids and return the text that can be sent now, maybe "".

        With `check_stop` false, as before `min_tokens`, stop strings that these ids complete are
        passed over; one that they begin and later ids complete still counts.
        """
        if len(ids) == 1:
            return self._push(ids[0], check_stop)
        return "".join([self._push(token, check_stop) for token in ids])

    def _push(self, token: int, check_stop: bool) -> str:
        if self._closed:
            return ""
        self.consumed += 1
        text = self._step(token)
        if not text:
            return ""
        stops = self._stops
        if stops is not None and (self._state or not stops.first.isdisjoint(text)):
            text = self._release(text, token in self._added, check_stop)
        return text

    def _release(self, text: str, whole: bool, check_stop: bool) -> str:
        """Split off what may still become a stop string, or end the text at one."""
        stops = self._stops
        assert stops is not None
        known = len(self._held)
        self._state, end = stops.scan(self._state, text, check_stop)
        held = self._held + text
        if end >= 0:
            self.stopped = stops.match[self._state]
            assert self.stopped is not None
            self._closed = True
            self._held = ""
            cut = known + end
            if not self._include_stop:
                cut -= len(self.stopped)
                assert cut >= 0, "the beginning of a stop string was sent"
            return held[:cut]
        cut = len(held) - stops.hold[self._state]
        if whole:
            self._whole.append((known, len(held)))
        if self._whole:
            cut = self._spare_whole(cut)
        self._held = held[cut:]
        return held[:cut]

    def _spare_whole(self, cut: int) -> int:
        """Move `cut` to the front of the added token it would cut, and forget what is sent."""
        for start, end in self._whole:
            if start < cut < end:
                cut = start
        self._whole = [(start - cut, end - cut) for start, end in self._whole if end > cut]
        return cut

    def finish(self) -> str:
        """Return what was held back; the request has ended. Bytes of a character that never came
        whole become U+FFFD. They are not searched for stop strings."""
        if self._closed:
            return ""
        self._closed = True
        text = self._held + self._stream.flush()
        self._held = ""
        return text
