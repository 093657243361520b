"""The engine as the server's event loop knows it: submit, follow, cancel, ask, close."""

from __future__ import annotations

import asyncio
import logging
import pickle
import subprocess
from collections import deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from core.errors import EngineDead, UserError
from core.sampling.params import SamplingParams
from plugins.serve.engine import messages
from plugins.serve.engine.messages import EngineInfo, Piece, pack, unpack
from plugins.serve.engine.process import Orders
from plugins.serve.engine.spawning import obituary, start_process
from plugins.serve.engine.submission import Busy, Refused, Stopped, Submission
from plugins.serve.engine.turns import Turns
from plugins.serve.engine.waiting import Waiting
from plugins.serve.engine.wire import Wire

if TYPE_CHECKING:
    from core.config import Config

__all__ = ["Busy", "EngineClient", "EngineInfo", "Piece", "Refused", "Stopped", "Submission"]

log = logging.getLogger("plait")

GRACE = 5.0  # seconds that the process gets to end by itself
LAST_WORDS = 2.0  # seconds until a process that closed its connection has an exit status
NUMBERS = 2**31 - 2**16  # answers have smaller numbers, which begin anew then


class EngineClient:
    """Starts the engine's process, hands it requests, and brings their pieces. For one event loop.

    `info` is there once `start` has returned.
    """

    info: EngineInfo

    def __init__(
        self, config: Config, *, name: str, queue: int = 1024, secrets: Collection[str] = ()
    ) -> None:
        """`name`: of the model, for requests. `queue`: most answers that wait for their first
        token; more are turned away. `secrets`: environment variables that the process does not
        get."""
        self._config, self._name, self._secrets = config, name, secrets
        self._waiting, self._turns = Waiting(queue), Turns()
        self._next = 0
        self._answers: dict[int, Submission] = {}  # by the number of an answer; those that are open
        self._unread: dict[int, Submission] = {}  # by number; those that the engine has to answer
        self._steady: list[tuple[Submission | None, int]] = []  # who got one id each, in order
        self._asked: deque[asyncio.Future[dict[str, int]]] = deque()
        self._process: subprocess.Popen[bytes] | None = None
        self._wire: Wire | None = None
        self._ready: asyncio.Future[EngineInfo] | None = None
        self._error: EngineDead | None = EngineDead("the engine has not been started.")
        self._reason = ""  # the engine's own, for its end
        self._closing = False
        self._dying: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether requests can be submitted."""
        return self._error is None

    async def start(self) -> None:
        """Start the engine and wait until it is ready. UserError or EngineDead when it is not."""
        orders = pickle.dumps(Orders(self._config, self._name, log.getEffectiveLevel()))
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        self._process, connection = start_process(self._secrets)
        _, self._wire = await loop.create_unix_connection(
            lambda: Wire(self._hear, self._lose), sock=connection
        )
        self._wire.send_bytes(orders)
        try:
            self.info = await self._ready
        except BaseException:
            # one that is still loading does not listen
            await self.close(grace=GRACE if self._reason else 0.5)
            raise
        if self._dying is None:
            self._error = None

    async def close(self, drain: float = 0.0, *, grace: float = GRACE) -> None:
        """Let what runs end within `drain` seconds, then end the process. May be repeated.

        `grace`: seconds until a process that does not end is killed.
        """
        if self._error is None:
            self._error = Stopped("the server is stopping.")
        until = asyncio.get_running_loop().time() + drain
        while self._answers and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.02)
        self._closing = True
        self._fail(Stopped("the server was stopped before this answer had ended."))
        if self._wire is not None:
            self._wire.transport.close()
        if self._process is not None:
            await asyncio.to_thread(_end, self._process, grace)

    def check_room(self, answers: int) -> None:
        """Whether so many more may wait: asked before work is done for a request, and so that one
        of several prompts is not taken in by parts. Raises Busy, Refused, and EngineDead."""
        self._check_alive()
        self._waiting.check(answers)

    def _check_alive(self) -> None:
        if self._error is not None:
            raise type(self._error)(str(self._error))

    def submit(
        self,
        ids: Sequence[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        salt: str | None = None,
    ) -> Submission:
        """Hand a prompt of token ids to the engine; follow the answer with `async for`.

        Raises Busy, and EngineDead. The engine's refusal comes where the first piece was due, or
        from `Submission.accepted`. `priority`: lower runs first. `salt`: requests with different
        ones share no cached pages.
        """
        self._check_alive()
        assert self._wire is not None
        number = self._next
        submission = Submission(number, params.n, self._cancel, self._turns)
        try:
            self._waiting.check(params.n)
            given = {name: getattr(params, name) for name in params.given}
            self._wire.send(messages.Submit(number, pack(ids), given, priority, salt))
        except Refused as refused:
            submission.fail(refused)
            return submission
        except (TypeError, OverflowError, ValueError) as error:
            submission.fail(Refused([f"the request is no message for the engine: {error}."]))
            return submission
        self._next = (number + params.n) if number + params.n < NUMBERS else 0
        answers = range(number, number + params.n)
        self._answers |= dict.fromkeys(answers, submission)
        self._unread[number] = submission
        self._waiting.enter(answers)
        return submission

    async def statistics(self) -> dict[str, int]:
        """The counters of `core.engine.Engine.statistics`. EngineDead when it is gone."""
        self._check_alive()
        assert self._wire is not None
        future: asyncio.Future[dict[str, int]] = asyncio.get_running_loop().create_future()
        self._asked.append(future)
        self._wire.send(messages.Ask())
        return await future

    # what the engine says

    def _hear(self, report: messages.Report) -> None:
        if isinstance(report, messages.News):
            self._hand_out(report)
        elif isinstance(report, messages.Accepted):
            self._unread.pop(report.number).accept()
        elif isinstance(report, messages.Rejected):
            submission = self._unread.pop(report.number)
            self._forget(submission, None)
            submission.fail(Refused(report.sentences))
        elif isinstance(report, messages.Counters):
            if not (future := self._asked.popleft()).done():
                future.set_result(report.values)
        elif isinstance(report, messages.Ready):
            assert self._ready is not None
            self._ready.set_result(report.info)
        else:
            self._die(report.by_user, report.text)

    def _hand_out(self, news: messages.News) -> None:
        if news.answers is not None:
            found = ((self._answers.get(n), n) for n in unpack(news.answers))
            self._steady = [(s, n - s.number if s else 0) for s, n in found]
        for (submission, index), token in zip(self._steady, unpack(news.ids), strict=True):
            if submission is not None:
                submission.deliver(Piece(index, [token]))
        for number, piece in news.others:
            submission = self._answers.get(number)
            if submission is None:
                continue  # cancelled meanwhile
            self._waiting.leave(number)
            if piece.finish is not None:
                del self._answers[number]
            submission.deliver(piece)

    def _cancel(self, submission: Submission, index: int | None) -> None:
        if self._error is None and self._wire is not None:
            self._wire.send(messages.Cancel(submission.number, index))
        self._forget(submission, index)

    def _forget(self, submission: Submission, index: int | None) -> None:
        for each in submission.open if index is None else [index]:
            self._answers.pop(submission.number + each, None)
            self._waiting.leave(submission.number + each)

    # its end

    def _die(self, by_user: bool, text: str) -> None:
        """Its last words; the connection ends behind them."""
        assert self._ready is not None
        if not self._ready.done():
            self._ready.set_exception(UserError(text) if by_user else EngineDead(text))
        self._reason = text

    def _lose(self) -> None:
        if self._closing:
            return
        self._error = self._error or EngineDead("the engine is gone.")
        self._dying = asyncio.get_running_loop().create_task(self._mourn())

    async def _mourn(self) -> None:
        assert self._process is not None
        assert self._ready is not None
        reason = self._reason or await asyncio.to_thread(obituary, self._process, LAST_WORDS)
        if not self._ready.done():
            self._ready.set_exception(EngineDead(f"the engine did not start: {reason}"))
        elif not self._closing:
            self._error = EngineDead(f"the engine is gone: {reason}")
            log.error(
                "%s Requests get the status 503 until the server is started anew.", self._error
            )
            self._fail(self._error)

    def _fail(self, error: EngineDead) -> None:
        for submission in dict.fromkeys(self._answers.values()):
            submission.fail(type(error)(str(error)))
        for future in self._asked:
            if not future.done():
                future.set_exception(type(error)(str(error)))
        self._answers.clear()
        self._unread.clear()
        self._asked.clear()
        self._steady = []


def _end(process: subprocess.Popen[bytes], grace: float) -> None:
    try:
        process.wait(grace)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdin is not None
    process.stdin.close()
