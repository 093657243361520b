"""Pieces of an answer become its text, by the very rules of offline generation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.generation import Answer
from core.types import Request

if TYPE_CHECKING:
    from core.outputs import Logprob
    from core.sampling.params import SamplingParams
    from core.text import TokenizerLike
    from plugins.serve.engine.messages import Piece


class AnswerText:
    """One of the answers to a prompt, as far as it has come.

    `live`: its text is wanted piece by piece. Otherwise it is made at the end, unless a stop
    string has to be looked for.
    """

    __slots__ = ("_answer", "_scored", "_shown", "cached", "request")

    def __init__(
        self,
        index: int,
        prompt: list[int],
        params: SamplingParams,
        tokenizer: TokenizerLike | None,
        live: bool,
    ) -> None:
        self.request = Request("", prompt, params)
        self._answer = Answer(index, self.request, tokenizer, live)
        self._shown = self._scored = self.cached = 0

    def take(self, piece: Piece) -> str:
        """Take in what is new. -> the text that can be sent for it, maybe "".

        When a stop string was found, `finish` is set although the piece does not say so: the
        engine has to be told.
        """
        request = self.request
        request.output += piece.ids
        if piece.cached:
            self.cached = piece.cached
        if piece.finish is not None:
            request.finish_reason = piece.finish  # type: ignore[assignment]
            request.stop_reason, request.error = piece.stop_reason, piece.error
        answer = self._answer
        stop = answer.take(piece.logprobs)
        if stop is not None:
            request.finish_reason, request.stop_reason = "stop", stop
        text = answer.text
        new, self._shown = text[self._shown :], len(text)
        return new

    @property
    def finish(self) -> str | None:
        """Why it has ended: "stop", "length", "abort" or "error"; None: it has not."""
        return self.request.finish_reason

    @property
    def stop_reason(self) -> int | str | None:
        """The stop string, or the id of `stop_token_ids`; None for the model's own end."""
        reason = self.request.stop_reason
        named = self.request.params.stop_token_ids or ()
        return reason if isinstance(reason, str) or reason in named else None

    @property
    def ids(self) -> list[int]:
        """All token ids so far."""
        return self.request.output

    @property
    def text(self) -> str:
        """All text so far."""
        return self._answer.text

    def new_logprobs(self) -> list[tuple[int, dict[int, Logprob]]]:
        """Log probabilities since the last call, with the id that was chosen; one entry a token."""
        found = self._answer.logprobs or []
        first, self._scored = self._scored, len(found)
        return list(zip(self.ids[first:], found[first:], strict=False))
