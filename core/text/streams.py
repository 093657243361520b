"""From one token id to the text that it completes; where the bytes of a character wait."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from core.text.interface import TokenizerLike

BROKEN = "\ufffd"  # what decoders write for bytes that are no character


class Pieces(dict[int, str | bytes]):
    """By id, the text that it adds in a byte-level vocabulary; filled as ids are met.

    Filling all 150,000 entries ahead would cost a third of a second at every start.
    """

    def __init__(
        self, token_bytes: Callable[[int], bytes | None], skipped: AbstractSet[int]
    ) -> None:
        super().__init__(dict.fromkeys(skipped, ""))
        self._token_bytes = token_bytes

    def __missing__(self, token: int) -> str | bytes:
        data = self._token_bytes(token) or b""
        try:
            piece: str | bytes = data.decode("utf-8")
        except UnicodeDecodeError:
            piece = data
        self[token] = piece
        return piece


class ByteStream:
    """Text of a byte-level vocabulary: tokens are bytes, and a character may need four tokens."""

    __slots__ = ("_pending", "_pieces")

    def __init__(self, pieces: Mapping[int, str | bytes]) -> None:
        self._pieces = pieces
        self._pending = b""  # the beginning of a character, at most three bytes

    def step(self, token: int) -> str:
        """Text that `token` completes; "" while a character is incomplete."""
        piece = self._pieces[token]
        if type(piece) is str:
            if not self._pending or not piece:
                return piece
            return self.flush() + piece  # a whole character came where a continuation was due
        data = self._pending + piece  # type: ignore[operator]
        text, used = utf_8_decode(data, "replace", False)
        self._pending = data[used:]
        return text

    def flush(self) -> str:
        """What is left of an incomplete character."""
        text = self._pending.decode("utf-8", "replace")  # b"\xed\xa0" waits, but makes two U+FFFD
        self._pending = b""
        return text


class WindowStream:
    """Text of any other vocabulary: the last few ids are decoded together, and the news is sent.

    Decoders look at neighbours (a space before every word but the first, runs of `<0xE4>` bytes),
    so an id has no text of its own. Two things wait: a last U+FFFD, which may become a character,
    and a run of byte tokens, because one bad byte turns the whole run into U+FFFD.
    """

    __slots__ = (
        "_added",
        "_byte_ids",
        "_join_added",
        "_last_added",
        "_shown",
        "_skipped",
        "_tokenizer",
        "_window",
    )

    KEPT = 8  # ids that stay as context; a character never spans more than four
    LIMIT = 32  # ids after which the window is cut, so that a long text costs linear time

    def __init__(
        self,
        tokenizer: TokenizerLike,
        skip_special_tokens: bool,
        spaces_between_special_tokens: bool,
        prompt_ids: Sequence[int],
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped: AbstractSet[int] = (
            tokenizer.special_ids if skip_special_tokens else frozenset()
        )
        self._byte_ids = tokenizer.byte_fallback_ids
        self._added = tokenizer.added_ids
        self._join_added = not (skip_special_tokens or spaces_between_special_tokens)
        self._last_added = False
        self._window = self._context(prompt_ids)
        self._shown = len(self._decode(self._window))  # characters of the window that were sent

    def _context(self, prompt_ids: Sequence[int]) -> list[int]:
        kept: list[int] = []
        for token in reversed(prompt_ids):
            if self._has_text(token) and (kept or token not in self._byte_ids):
                kept.append(token)
                if len(kept) == self.KEPT:
                    break
        return kept[::-1]

    def _has_text(self, token: int) -> bool:
        return token not in self._skipped and self._tokenizer.token_bytes(token) is not None

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def step(self, token: int) -> str:
        """Text that `token` completes; "" while something waits."""
        if not self._has_text(token):
            return ""
        self._window.append(token)
        if token in self._byte_ids:
            self._last_added = False
            return ""
        text = self._decode(self._window)
        out = self._news(text, len(text) - text.endswith(BROKEN))
        if len(self._window) > self.LIMIT:
            unsent = len(text) - self._shown
            self._window = self._window[-self.KEPT :]
            self._shown = len(self._decode(self._window)) - unsent
        if token in self._added:
            if self._last_added and out == " " + self._tokenizer.token_text(token):
                out = out[1:] if self._join_added else out
            self._last_added = True
        else:
            self._last_added = False
        return out

    def _news(self, text: str, end: int) -> str:
        out = text[self._shown : end]
        self._shown = max(self._shown, end)
        return out

    def flush(self) -> str:
        """All that waits, as decoding everything at once would have it."""
        text = self._decode(self._window)
        return self._news(text, len(text))


def open_stream(
    tokenizer: TokenizerLike,
    skip_special_tokens: bool,
    spaces_between_special_tokens: bool,
    prompt_ids: Sequence[int],
) -> ByteStream | WindowStream:
    """The cheapest stream that is right for this vocabulary."""
    pieces = tokenizer.pieces(skip_special_tokens)
    if pieces is not None:
        return ByteStream(pieces)
    return WindowStream(tokenizer, skip_special_tokens, spaces_between_special_tokens, prompt_ids)
