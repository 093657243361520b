"""What the engine asks of a tokenizer, so that a plugin can bring its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Protocol


class TokenizerLike(Protocol):
    """`core.text.Tokenizer` is the built-in one; the hook `open_tokenizer` may return another."""

    @property
    def vocab_size(self) -> int:
        """Tokens that have text. A model's padded vocabulary may be larger."""

    @property
    def eos_ids(self) -> AbstractSet[int]:
        """Ids that end a text according to the tokenizer; empty when it names none."""

    @property
    def special_ids(self) -> AbstractSet[int]:
        """Ids that `skip_special_tokens` leaves out of the text."""

    @property
    def added_ids(self) -> AbstractSet[int]:
        """Ids of tokens such as `</think>`: one piece of text that a stream never cuts."""

    @property
    def byte_fallback_ids(self) -> AbstractSet[int]:
        """Ids that stand for one byte each where text is decoded by runs of them; mostly empty."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool | str = False,
        chat_template: str | None = None,
        **template_kwargs: Any,
    ) -> tuple[str, list[int]]: ...

    def token_text(self, token: int) -> str:
        """What the token adds to a text in which it is not the first; for logprobs."""

    def token_bytes(self, token: int) -> bytes | None:
        """The same as bytes, exact where a token is part of a character; None without text."""

    def pieces(self, skip_special_tokens: bool) -> Mapping[int, str | bytes] | None:
        """Per id what it adds to the text: `str` where it is whole by itself (maybe ""), `bytes`
        where it may be part of a character. None when the text of ids is not simply joined, as
        with SentencePiece: then `decode` is asked about the last few ids together.
        """
