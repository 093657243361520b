"""A tokenizer's vocabulary as llguidance wants it: the bytes of every token."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llguidance import LLTokenizer

    from core.text import TokenizerLike

HEAD = 256  # characters of forced text that the tokenizer is asked about; the first token counts


class Vocabulary:
    """Stands in for a tokenizer of Hugging Face's. llguidance reads its attributes, and calls it
    with text that is the only one possible, so that the model gets the tokens that it knows."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(
        self,
        tokens: Sequence[bytes],
        special: Collection[int],
        ends: Sequence[int],
        encode: Callable[[str], list[int]],
    ) -> None:
        """`special`: never part of a text. `ends`: those of them that may end an answer."""
        from llguidance import LLTokenizer

        self.tokens, self.special_token_ids = list(tokens), sorted(special)
        self.eos_token_id = ends[0]
        self._encode, self._special = encode, frozenset(special)
        singles = {t: i for i, t in enumerate(tokens) if len(t) == 1 and i not in self._special}
        self._of_byte = [singles.get(bytes([byte])) for byte in range(256)]
        self.made: LLTokenizer = LLTokenizer(self, n_vocab=len(tokens), eos_token=list(ends))  # type: ignore[arg-type]

    @property
    def names(self) -> list[str]:
        """Of the special tokens: a grammar may say them, and they are no text."""
        return [self.tokens[i].decode(errors="replace") for i in self.special_token_ids]

    def __call__(self, text: str) -> list[int]:
        """Ids of `text`, whose bytes are just those of the text."""
        head, rest = text[:HEAD], text[HEAD:]
        try:
            ids = self._encode(head)
        except Exception:  # it would end the process: llguidance lets nothing through
            ids = []
        joined = b"".join(self.tokens[i] for i in ids)
        if joined != head.encode() or not self._special.isdisjoint(ids):
            ids = self._greedy(head)  # one that normalises text, or begins it with a blank
        return ids + self._bytewise(rest) if rest else ids

    def _bytewise(self, text: str) -> list[int]:
        ids = [self._of_byte[byte] for byte in text.encode()]
        return self._greedy(text) if None in ids else ids  # type: ignore[return-value]

    def _greedy(self, text: str) -> list[int]:
        return self.made.greedy_tokenize(text)


def vocabulary(tokenizer: TokenizerLike, size: int, ends: Sequence[int]) -> Vocabulary:
    """That of a model with `size` logits. Ids without text, and tokens such as `<think>`, which
    streams never cut, are no part of an answer; `ends` end it."""
    tokens: list[bytes] = []
    special = set(ends)
    apart = tokenizer.added_ids | tokenizer.special_ids
    for token in range(size):
        data: Any = tokenizer.token_bytes(token) if token < tokenizer.vocab_size else None
        if not data or token in apart:
            special.add(token)
        tokens.append(data or f"<|{token}|>".encode())
    return Vocabulary(
        tokens, special, ends, lambda text: tokenizer.encode(text, add_special_tokens=False)
    )
