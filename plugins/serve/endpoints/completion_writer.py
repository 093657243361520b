"""Writes one answer of `/v1/completions`, whole or event by event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from plugins.serve.endpoints.frames import Frames, encode
from plugins.serve.protocol.completions import CompletionChoice, CompletionLogprobs
from plugins.serve.protocol.usage import usage
from plugins.serve.text.answers import AnswerText
from plugins.serve.text.offsets import Offsets
from plugins.serve.text.scores import as_vllm, for_completion, of_prompt

if TYPE_CHECKING:
    from core.sampling.params import SamplingParams
    from core.text import TokenizerLike
    from plugins.serve.engine.messages import Piece
    from plugins.serve.text.scores import Position


@dataclass(frozen=True)
class Wishes:
    """What the answers to one request are to tell."""

    params: SamplingParams
    stream: bool
    logprobs: int | None = None
    prompt_logprobs: bool = False
    ids: bool = False
    only_prompt: bool = False  # max_tokens is 0: the prompt is scored, nothing is added
    usage: bool = False  # in every event


class CompletionWriter:
    """One answer. `index` counts prompts and answers through; `number` the answers of a prompt."""

    def __init__(
        self,
        frames: Frames,
        index: int,
        number: int,
        prompt: list[int],
        echoed: str | None,
        tokenizer: TokenizerLike | None,
        wishes: Wishes,
    ) -> None:
        self.answer = AnswerText(number, prompt, wishes.params, tokenizer, live=wishes.stream)
        self.enough = False
        self.prompt_scores: list[Position | None] | None = None
        self._frames, self._index, self._prompt, self._wishes = frames, index, prompt, wishes
        self._tokenizer, self._echoed = tokenizer, echoed
        self._begun = False
        self._sent_ids = 0
        self._offsets: Offsets | None = None
        if wishes.logprobs is not None:
            self._offsets = Offsets(prompt, echoed, wishes.params, tokenizer)
        self._plain = wishes.logprobs is None and not (wishes.ids or wishes.usage)
        number_json = str(index).encode()
        self._front, self._back = frames.around(
            b'{"index":' + number_json + b',"text":', b',"logprobs":null,"finish_reason":null}'
        )

    def take(self, piece: Piece) -> bytes:
        """News of the answer. -> an event, if it is streamed and there is anything to say.

        That is the case whenever there are tokens, though the text of some is still to come:
        clients count events, and time them.
        """
        if piece.prompt_logprobs is not None:
            self.prompt_scores = of_prompt(self._prompt, piece.prompt_logprobs, self._tokenizer)
        answer = self.answer
        text = answer.take(piece)
        if answer.finish is None:
            if self._plain and self._begun:
                return self._front + encode(text) + self._back if piece.ids else b""
        else:
            self.enough = True
        if not self._wishes.stream:
            return b""
        return self._event(text, bool(piece.ids))

    def _event(self, text: str, tokens: bool) -> bytes:
        choice = self._choice(text)
        told = choice.finish_reason is not None or choice.text or choice.logprobs is not None
        if not told and not tokens and not self._wishes.ids:
            return b""
        self._begun = True
        so_far = usage(len(self._prompt), len(self.answer.ids), self.answer.cached)
        return self._frames.event(encode(choice), so_far if self._wishes.usage else None)

    def whole(self) -> CompletionChoice:
        """The answer as it is now."""
        return self._choice(self.answer.text)

    def _choice(self, text: str) -> CompletionChoice:
        """What is new: the prompt as well, before the first of it."""
        wishes, answer = self._wishes, self.answer
        choice = CompletionChoice(self._index, text, None, answer.finish, answer.stop_reason)  # type: ignore[arg-type]
        new_scores: list[Any] = list(answer.new_logprobs())
        if wishes.only_prompt:
            choice.text, new_scores = "", []
            choice.finish_reason, choice.stop_reason = "length" if answer.finish else None, None
        if wishes.logprobs is not None:
            choice.logprobs = self._scores(new_scores, wishes.logprobs)
        if not self._begun:
            choice.text = (self._echoed or "") + choice.text
            if wishes.prompt_logprobs and self.prompt_scores is not None:
                choice.prompt_logprobs = as_vllm(self.prompt_scores)
        if wishes.ids:
            choice.token_ids = [] if wishes.only_prompt else answer.ids[self._sent_ids :]
            self._sent_ids = len(answer.ids)
            choice.prompt_token_ids = msgspec.UNSET if self._begun else self._prompt
        return choice

    def _scores(self, new: list[Any], count: int) -> CompletionLogprobs | None:
        """Of the new tokens; before the first of them of the prompt's, if it is echoed."""
        assert self._offsets is not None
        first, offsets = "", self._offsets.answer([token for token, _ in new])
        if self._echoed is not None and not self._begun:
            first = self._tokenizer.token_text(self._prompt[0]) if self._tokenizer else ""
            new = [*(self.prompt_scores or [None]), *new]
            offsets = [*self._offsets.prompt(), *offsets]
        if not new and self._wishes.stream:
            return None
        return for_completion(new, count, offsets, first)
