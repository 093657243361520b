"""Writes one answer of `/v1/chat/completions`, whole or event by event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from plugins.serve.endpoints.frames import Frames, encode, fields
from plugins.serve.protocol.chat_answers import (
    AnswerMessage,
    CalledTool,
    ChatChoice,
    ChatLogprobs,
    ChunkChoice,
    Delta,
)
from plugins.serve.protocol.usage import usage
from plugins.serve.text.answers import AnswerText
from plugins.serve.text.replies import Reading, Reply, Said
from plugins.serve.text.scores import as_vllm, for_chat, of_prompt

if TYPE_CHECKING:
    from core.sampling.params import SamplingParams
    from core.text import TokenizerLike
    from plugins.serve.engine.messages import Piece
    from plugins.serve.text.scores import Position

FIRST = Delta(role="assistant", content="")


@dataclass(frozen=True)
class ChatWishes:
    """What the answers to one request are to tell, and how they are to be read."""

    params: SamplingParams
    reading: Reading
    stream: bool
    prompt_logprobs: bool = False
    ids: bool = False
    usage: bool = False  # in every event


class ChatWriter:
    """One of the n answers."""

    def __init__(
        self,
        frames: Frames,
        index: int,
        prompt: list[int],
        tokenizer: TokenizerLike | None,
        wishes: ChatWishes,
    ) -> None:
        params, reading = wishes.params, wishes.reading
        # a single call ends the answer, so it has to be looked for in every piece
        follows = wishes.stream or (reading.tools and not reading.parallel)
        self.answer = AnswerText(index, prompt, params, tokenizer, live=follows)
        self.enough = False
        self.prompt_scores: list[Position | None] | None = None
        self._reply = Reply(reading, live=follows)
        self._frames, self._index, self._prompt, self._wishes = frames, index, prompt, wishes
        self._tokenizer = tokenizer
        self._content: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[CalledTool] = []
        self._sent_ids = 0
        self._scores = params.logprobs
        self._plain = params.logprobs is None and not (wishes.ids or wishes.usage)
        self._front, self._back = frames.around(
            b'{"index":%d,"delta":{"content":' % index, b'},"logprobs":null,"finish_reason":null}'
        )

    def take(self, piece: Piece) -> bytes:
        """News of the answer. -> an event, if it is streamed and there is anything to say.

        Plain text has an event whenever there are tokens, though the text of some is still to come:
        clients count events, and time them.
        """
        if piece.prompt_logprobs is not None and self._index == 0:  # they are told once
            self.prompt_scores = of_prompt(self._prompt, piece.prompt_logprobs, self._tokenizer)
        answer, reply = self.answer, self._reply
        text = answer.take(piece)
        if answer.finish is None and self._plain and reply.plain and self._wishes.stream:
            return self._front + encode(text) + self._back if piece.ids else b""
        said = reply.take(text)
        if answer.finish is not None or self._has_its_call():
            self.enough = True
            rest = reply.finish()
            said.content += rest.content
            said.reasoning += rest.reasoning
            said.add(rest.calls)
        if self._wishes.stream:
            return self._event(said, bool(piece.ids))
        self._keep(said)
        return b""

    def begin(self) -> bytes:
        """The first event: who speaks, and what was asked about the prompt."""
        choice = ChunkChoice(self._index, FIRST, None, None)
        more = b""
        if self._wishes.ids and self._index == 0:
            more = fields(prompt_token_ids=self._prompt)
        zero = usage(len(self._prompt), 0, 0) if self._wishes.usage else None
        return self._frames.event(encode(choice), zero, more)

    def _has_its_call(self) -> bool:
        reading = self._wishes.reading
        return reading.tools and not reading.parallel and self._reply.calls_ended > 0

    @property
    def _finish(self) -> str | None:
        if not self.enough:
            return None
        finish = self.answer.finish or "stop"
        return "tool_calls" if self._reply.called and finish == "stop" else finish

    def _event(self, said: Said, tokens: bool) -> bytes:
        scores = self._new_scores()
        finish = self._finish
        waiting = tokens and self._reply.plain and finish is None and not said
        if not (said or waiting or scores or finish or self._wishes.ids):
            return b""
        content, thought = "" if waiting else said.content or None, said.reasoning or None
        delta = Delta(None, content, thought, thought, said.calls or None)
        choice = ChunkChoice(self._index, delta, scores, finish)  # type: ignore[arg-type]
        if finish is not None:
            choice.stop_reason = self.answer.stop_reason
        if self._wishes.ids:
            choice.token_ids = self.answer.ids[self._sent_ids :]
            self._sent_ids = len(self.answer.ids)
        more = b""
        if self._wishes.prompt_logprobs and self.prompt_scores is not None:
            more = fields(prompt_logprobs=as_vllm(self.prompt_scores))
            self.prompt_scores = None
        so_far = usage(len(self._prompt), len(self.answer.ids), self.answer.cached)
        return self._frames.event(encode(choice), so_far if self._wishes.usage else None, more)

    def _new_scores(self) -> ChatLogprobs | None:
        if self._scores is None:
            return None
        positions = self.answer.new_logprobs()
        return for_chat(positions, self._scores, self._tokenizer) if positions else None

    def _keep(self, said: Said) -> None:
        self._content.append(said.content)
        self._thoughts.append(said.reasoning)
        kept = Said(calls=self._calls)
        kept.add(said.calls)

    def whole(self) -> ChatChoice:
        """The whole answer, at its end."""
        content, thoughts = "".join(self._content), "".join(self._thoughts)
        message = AnswerMessage(content=content or (None if self._calls or thoughts else ""))
        if thoughts:
            message.reasoning = message.reasoning_content = thoughts
        if self._calls:
            for call in self._calls:
                call.index = msgspec.UNSET
            message.tool_calls = self._calls
        scores = None
        if self._scores is not None:
            scores = self._new_scores() or ChatLogprobs([])
        choice = ChatChoice(
            index=self._index,
            message=message,
            logprobs=scores,
            finish_reason=self._finish,  # type: ignore[arg-type]
            stop_reason=self.answer.stop_reason,
        )
        if self._wishes.ids:
            choice.token_ids = self.answer.ids
        return choice
