"""Where in a completion's text its tokens begin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from core.text import Detokenizer

if TYPE_CHECKING:
    from core.sampling.params import SamplingParams
    from core.text import TokenizerLike


class Offsets:
    """Counts the characters of one answer, as its tokens make them: several tokens of one character
    begin where that begins, and one that is left out of the text takes no room in it."""

    def __init__(
        self,
        prompt: Sequence[int],
        echoed: str | None,
        params: SamplingParams,
        tokenizer: TokenizerLike | None,
    ) -> None:
        """`echoed`: the prompt's text, where the answer's is to begin with it."""
        self._prompt, self._echoed, self._tokenizer = prompt, echoed or "", tokenizer
        self._at = len(self._echoed)
        self._answer = None
        if tokenizer is not None:
            self._answer = Detokenizer(
                tokenizer,
                skip_special_tokens=params.skip_special_tokens,
                spaces_between_special_tokens=params.spaces_between_special_tokens,
                prompt_ids=prompt,
            )

    def prompt(self) -> list[int]:
        """Of each token of the prompt that is echoed."""
        tokenizer, echoed = self._tokenizer, self._echoed
        if tokenizer is None:
            return [0] * len(self._prompt)
        text, at, found = Detokenizer(tokenizer, skip_special_tokens=False), 0, []
        for token in self._prompt:
            found.append(at)
            special = token in tokenizer.special_ids
            if special and not echoed.startswith(tokenizer.token_text(token), at):
                continue  # it was added to the text that was given, and is not echoed
            at = min(at + len(text.push([token])), len(echoed))
        return found

    def answer(self, ids: Sequence[int]) -> list[int]:
        """Of the answer's next tokens."""
        found = []
        for token in ids:
            found.append(self._at)
            self._at += len(self._answer.push([token])) if self._answer else 0
        return found
