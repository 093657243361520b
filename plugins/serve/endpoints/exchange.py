"""One HTTP request on its way: its prompts go to the engine, its answers to the client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from core.errors import EngineDead
from plugins.serve.endpoints.serving import Serving, as_api_error
from plugins.serve.engine.submission import Busy, Refused, Submission
from plugins.serve.protocol.errors import ApiError
from plugins.serve.protocol.sampling import refused

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from core.sampling.params import SamplingParams
    from plugins.serve.engine.messages import Piece
    from plugins.serve.metrics import Reading
    from plugins.serve.text.answers import AnswerText

EXPECTED = (ApiError, Refused, Busy, EngineDead)

MOST_PIECES = 16
"""Are written at once to a client when many have come; it has to take them before it gets more,
and other clients have their turns."""

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy must not collect events
]


class AnswerWriter(Protocol):
    """Writes one of the answers."""

    answer: AnswerText
    enough: bool  # it has ended, whatever the engine says

    def take(self, piece: Piece) -> bytes:
        """News of it. -> the events that they make in a stream."""


class PromptWork:
    """One prompt and its n answers."""

    def __init__(self, ids: list[int], writers: Sequence[AnswerWriter]) -> None:
        self.ids, self.writers = ids, writers
        self.submission: Submission | None = None

    @property
    def completion_tokens(self) -> int:
        """Tokens of all answers so far."""
        return sum(len(writer.answer.ids) for writer in self.writers)


class Exchange:
    """Called by Starlette as any response. A client that goes away ends its requests.

    `first` and `last` are what a stream begins and ends with; `whole` makes the body of an answer
    that is not streamed; `refusal` says what the engine has against the request.
    """

    def __init__(
        self,
        serving: Serving,
        works: Sequence[PromptWork],
        params: SamplingParams,
        *,
        stream: bool,
        first: Callable[[], bytes],
        last: Callable[[], bytes],
        whole: Callable[[], bytes],
        priority: int = 0,
        salt: str | None = None,
        max_tokens: int | None = None,
        arrived: float | None = None,
        refusal: Callable[[list[str]], ApiError] = refused,
    ) -> None:
        self._serving, self.works, self._params = serving, works, params
        self._stream, self._first, self._last, self._whole = stream, first, last, whole
        self._priority, self._salt = priority, salt
        self._max_tokens, self._arrived = max_tokens, arrived
        self._refusal = refusal
        self._gone = False
        self._rest = b""  # events that are not sent yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._submit()
            watch = asyncio.get_running_loop().create_task(self._watch(receive))
            try:
                if self._stream:
                    await self._answer_stream(send)
                else:
                    await self._answer_whole(send)
            finally:
                watch.cancel()
        except EXPECTED as error:
            raise as_api_error(error, self._refusal) from error
        finally:
            self._cancel()

    async def _submit(self) -> None:
        for work in self.works:
            if work is not self.works[0]:
                await asyncio.sleep(0)  # others have their turns between many prompts
            work.submission = self._serving.client.submit(
                work.ids, self._params, priority=self._priority, salt=self._salt
            )

    def _cancel(self) -> None:
        for work in self.works:
            if work.submission is not None:
                work.submission.cancel()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._cancel()

    async def _answer_whole(self, send: Send) -> None:
        await self._follow_all(None)
        if self._gone:
            return
        if self._params.logprobs is None and self._params.prompt_logprobs is None:
            body = self._whole()
        else:  # that may take seconds, and others have their turns
            body = await asyncio.to_thread(self._whole)
            if self._gone:
                return
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer_stream(self, send: Send) -> None:
        for work in self.works:
            assert work.submission is not None
            await work.submission.accepted()
        if self._gone:
            return
        await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
        if begin := self._first():
            await send(_part(begin))
        try:
            await self._follow_all(send)
            end = self._last()
        except EXPECTED as error:
            end = b"data: " + as_api_error(error, self._refusal).body() + b"\n\n"
        except Exception:
            end = b"data: " + BROKEN.body() + b"\n\n"
            await self._finish(send, end)
            raise
        await self._finish(send, end)

    async def _finish(self, send: Send, end: bytes) -> None:
        if not self._gone:
            body = self._rest + end + b"data: [DONE]\n\n"
            await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _follow_all(self, send: Send | None) -> None:
        if len(self.works) == 1:
            await self._follow(self.works[0], send)
            return
        tasks = [asyncio.ensure_future(self._follow(work, send)) for work in self.works]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _follow(self, work: PromptWork, send: Send | None) -> None:
        """Hand on the news of one prompt until all its answers have ended; a write a time."""
        submission, writers = work.submission, work.writers
        assert submission is not None
        meter = self._serving.meter.arrived(
            len(work.ids), n=len(writers), max_tokens=self._max_tokens, at=self._arrived
        )
        with meter:
            while (pieces := await submission.take(MOST_PIECES)) and not self._gone:
                events = self._events(submission, writers, meter, pieces)
                if not events or send is None:
                    continue
                if submission.more or len(self.works) > 1:
                    await send(_part(events))
                else:
                    self._rest = events  # goes out with the end, in one write

    def _events(
        self,
        submission: Submission,
        writers: Sequence[AnswerWriter],
        meter: Reading,
        pieces: Sequence[Piece],
    ) -> bytes:
        events: list[bytes] = []
        for piece in pieces:
            index = piece.index
            writer = writers[index]
            if writer.enough:
                continue
            meter.take(piece)
            if piece.finish not in (None, "stop", "length"):
                self._rest = b"".join(events)
                raise _ended_badly(piece)
            events.append(writer.take(piece))
            if piece.finish is None and writers[index].enough:  # by what was in this piece
                submission.cancel(index)
                meter.finished(index, "stop")
        return b"".join(events)


BROKEN = ApiError("The server failed to make this answer.", status=500, code="internal_error")


def _part(data: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": True}


def _ended_badly(piece: Piece) -> ApiError:
    if piece.finish == "abort":
        return ApiError("The request was ended: the server stops.", status=503, code="aborted")
    if piece.error is not None and piece.error.startswith("no token is possible"):
        # what the client forbade together leaves nothing
        return ApiError(piece.error, code="no_possible_token")
    return ApiError(piece.error or "The engine failed.", status=500, code="internal_error")
