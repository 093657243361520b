"""An engine for tests of endpoints: in this process, without a model, with answers as told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.errors import EngineDead, UserError
from core.sampling.params import SamplingParams
from core.types import TokenLogprobs
from plugins.serve.engine.messages import EngineInfo, Piece
from plugins.serve.engine.submission import Busy, Refused, Submission
from plugins.serve.engine.waiting import Waiting

Answering = Callable[[list[int], SamplingParams, int], Sequence[int]]


@dataclass
class Asked:
    """What one `submit` was called with."""

    ids: list[int]
    params: SamplingParams
    priority: int
    salt: str | None
    submission: Submission
    cancelled: list[int | None] = field(default_factory=list)


class FakeEngine:
    """Behaves as EngineClient does towards endpoints.

    `answer(prompt ids, params, index)` gives the ids that the model would sample, one a piece and
    a turn of the event loop (`step` seconds apart); by default it repeats the prompt. An end id or
    `stop_token_ids` ends it with "stop", max_tokens or the end of what `answer` gave with "length".
    Log probabilities are made up: token t at position p has -(t + p) / 1000.
    """

    def __init__(
        self,
        answer: Answering | None = None,
        *,
        step: float = 0.0,
        vocab_size: int = 301,
        eos_ids: Sequence[int] = (256,),
        max_length: int = 256,
        model: str = "tiny",
        defaults: dict[str, Any] | None = None,
        reads_priority: bool = False,
    ) -> None:
        self.info = EngineInfo(
            model, max_length, vocab_size, list(eos_ids), reads_priority, defaults or {}, "0", {}
        )
        self.answer = answer or (lambda ids, params, index: ids)
        self.step = step
        self.asked: list[Asked] = []
        self.queue = 1024  # most answers of a request
        self.busy: float | None = None  # seconds: every request is turned away
        self.dead: str | None = None  # see `die`
        self.hold = False  # nobody gets a piece while it is set
        self.cached = 0  # what the first piece says
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def alive(self) -> bool:
        return self.dead is None

    async def start(self) -> None:
        return None

    async def close(self, drain: float = 0.0) -> None:
        for task in self._tasks:
            task.cancel()

    def die(self, sentence: str = "the engine is gone.") -> None:
        """From now on every stream and every request gets EngineDead."""
        self.dead = sentence
        for asked in self.asked:
            asked.submission.fail(EngineDead(sentence))

    def check_room(self, answers: int) -> None:
        if self.dead is not None:
            raise EngineDead(self.dead)
        if self.busy is not None:
            raise Busy(self.busy)
        Waiting(self.queue).check(answers)

    def submit(
        self,
        ids: Sequence[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        salt: str | None = None,
    ) -> Submission:
        if self.dead is not None:
            raise EngineDead(self.dead)
        if self.busy is not None:
            raise Busy(self.busy)
        submission = Submission(len(self.asked), params.n, self._cancel)
        self.asked.append(Asked(list(ids), params, priority, salt, submission))
        if wrong := self._wrong(list(ids), params):
            submission.fail(Refused(wrong))
            return submission
        submission.accept()
        for index in range(params.n):
            task = asyncio.get_running_loop().create_task(
                self._answer(submission, list(ids), params, index)
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return submission

    async def statistics(self) -> dict[str, int]:
        if self.dead is not None:
            raise EngineDead(self.dead)
        running = sum(bool(asked.submission.open) for asked in self.asked)
        zeros = ("waiting", "pages_cached", "prefix_queries", "prefix_hits", "prefix_evictions")
        zeros += ("preemptions", "steps", "planned_tokens")
        pages = {"pages_total": 64, "pages_free": 64 - running, "pages_owned": running}
        return {"running": running, **pages, **dict.fromkeys(zeros, 0)}

    def _wrong(self, ids: list[int], params: SamplingParams) -> list[str]:
        wrong = []
        if not ids:
            wrong.append("the prompt is empty. Give at least one token.")
        if len(ids) >= (most := self.info.max_length):
            wrong.append(f"the prompt has {len(ids)} tokens, and a request may hold {most}.")
        try:
            checked = params.clone()
            checked.bad_words = []
            checked.check(self.info.vocab_size)
        except UserError as error:
            wrong += str(error).splitlines()
        return wrong

    def _cancel(self, submission: Submission, index: int | None) -> None:
        self.asked[submission.number].cancelled.append(index)

    async def _answer(
        self, submission: Submission, prompt: list[int], params: SamplingParams, index: int
    ) -> None:
        room = self.info.max_length - len(prompt)
        most = room if params.max_tokens is None else min(params.max_tokens, room)
        ends = set(params.stop_token_ids or ())
        ends |= set() if params.ignore_eos else set(self.info.eos_ids)
        ids = list(self.answer(prompt, params, index))[:most]
        for position, token in enumerate(ids):
            await asyncio.sleep(self.step)
            while self.hold:
                await asyncio.sleep(0.001)
            if index not in submission.open:
                return
            ended = token in ends and position + 1 >= params.min_tokens
            last = position + 1 == len(ids)
            first = position == 0
            submission.deliver(
                Piece(
                    index,
                    [token],
                    None if params.logprobs is None else [self._scores(token, position, params)],
                    prompt_logprobs=self._prompt_scores(prompt, params) if first else None,
                    cached=self.cached if first else 0,
                    finish="stop" if ended else "length" if last else None,
                    stop_reason=token if ended else None,
                )
            )
            if ended:
                return

    def _scores(self, token: int, position: int, params: SamplingParams) -> TokenLogprobs:
        count = params.logprobs or 0
        tops = [(token + i) % self.info.vocab_size for i in range(count)]
        value = -(token + position) / 1000
        return TokenLogprobs(token, value, 1, tops, [value - i for i in range(count)])

    def _prompt_scores(
        self, prompt: list[int], params: SamplingParams
    ) -> list[TokenLogprobs] | None:
        if params.prompt_logprobs is None:
            return None
        return [self._scores(token, at, params) for at, token in enumerate(prompt) if at]
