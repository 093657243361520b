"""What came of each step, as one message for the server: cheap while nothing but ids is new.

A message may say "those of the message before", so all of them are put here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from core.generation import answer_id, logprobs_of, prompt_logprobs_of
from plugins.serve.engine.messages import News, Piece, pack

if TYPE_CHECKING:
    from core.sampling.params import SamplingParams
    from core.types import Request, StepOutput, StepPlan, TokenLogprobs

_reason = attrgetter("finish_reason")


@dataclass(slots=True)
class _Told:
    """What the server was told of one answer."""

    number: int  # the server's, for this answer
    index: int
    plain: bool  # nothing but ids was asked for
    prompt: list[TokenLogprobs] | None
    sent: int = 0  # ids
    started: bool = False


class Bulletin:
    """Follows an engine (`Engine.on_step`) and puts a `News` for each step that has any.

    A step of a decode-only batch, the same requests as before with one id each, costs a few
    microseconds for any number of them: its columns are passed on as they are.
    """

    def __init__(self, put: Callable[[News], None]) -> None:
        self._put = put
        self._told: dict[str, _Told] = {}  # by the id of the engine's request
        self._steady: list[Request] = []  # the requests of the message before, if all were plain
        self._unsettled = 0  # ids that each of them got without `_Told.sent` being counted up

    def expect(self, id: str, number: int, params: SamplingParams) -> None:
        """A request was added to the engine; its first answer is `number` to the server."""
        scored = params.prompt_logprobs is not None
        for index in range(params.n):
            self._told[answer_id(id, index, params.n)] = _Told(
                number + index, index, params.logprobs is None, [] if scored else None
            )

    def forget(self, id: str, index: int | None, n: int) -> None:
        """Nobody wants to hear of this answer, or of all answers of the request."""
        for each in range(n) if index is None else [index]:
            self._told.pop(answer_id(id, each, n), None)

    def never_ran(self, number: int, n: int, error: str) -> None:
        """The answers to a prompt that could not be queued end with this error."""
        self._settle()  # the message before is no longer that of a step
        pieces = [Piece(index, [], finish="error", error=error) for index in range(n)]
        self._put(News(pack([]), pack([]), [(number + piece.index, piece) for piece in pieces]))

    def __call__(self, plan: StepPlan, output: StepOutput | None, news: Sequence[Request]) -> None:
        """One step was taken in."""
        if (
            self._steady
            and output is not None
            and output.counts is None
            and plan.requests == news == self._steady  # else ids are in another order
            and not any(map(_reason, news))
        ):
            self._unsettled += 1
            self._put(News(None, np.ascontiguousarray(output.ids, np.int32).tobytes(), []))
            return
        self._settle()
        logprobs = {} if output is None else logprobs_of(plan, output)
        for request, first, positions in [] if output is None else prompt_logprobs_of(plan, output):
            told = self._told.get(request.id)
            if told is not None and told.prompt is not None:
                told.prompt[first - 1 :] = positions  # some come again after a preemption
        answers, ids, others = [], [], []
        for request in news:
            told = self._told.get(request.id)
            if told is None:
                continue
            new = request.output[told.sent :]
            told.sent += len(new)
            if told.plain and told.started and len(new) == 1 and request.finish_reason is None:
                answers.append(told.number)
                ids += new
            elif new or request.finish_reason is not None:
                others.append((told.number, self._piece(request, told, new, logprobs)))
        if len(answers) == len(news):
            self._steady = list(news)
        if answers or others:
            self._put(News(pack(answers), pack(ids), others))

    def _settle(self) -> None:
        for request in self._steady if self._unsettled else ():
            if (told := self._told.get(request.id)) is not None:
                told.sent += self._unsettled
        self._steady, self._unsettled = [], 0

    def _piece(
        self,
        request: Request,
        told: _Told,
        ids: list[int],
        logprobs: dict[Request, list[TokenLogprobs]],
    ) -> Piece:
        piece = Piece(told.index, ids)
        if not told.plain:
            piece.logprobs = logprobs.get(request, [])[: len(ids)]
        if not told.started:
            told.started = True
            piece.cached, piece.prompt_logprobs, told.prompt = request.cached, told.prompt, None
            piece.waited = max(0.0, request.started - request.arrival)
        if request.finish_reason is not None:
            piece.finish, piece.error = request.finish_reason, request.error
            if isinstance(request.stop_reason, int):
                piece.stop_reason = request.stop_reason
            del self._told[request.id]
        return piece
