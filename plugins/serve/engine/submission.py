"""One prompt that was handed to the engine: its pieces as they come, and ways to end it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from core.errors import EngineDead
from plugins.serve.engine.messages import Piece
from plugins.serve.engine.turns import Turns


class Stopped(EngineDead):
    """The server was told to stop, and the answer had not ended in time."""


class Refused(Exception):
    """The request cannot be run: a sentence for each reason."""

    def __init__(self, sentences: list[str]) -> None:
        super().__init__("\n".join(sentences))
        self.sentences = sentences


class Busy(Exception):
    """Too many requests wait already."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"too many requests are waiting. Try again in {retry_after:.0f} seconds.")
        self.retry_after = retry_after  # seconds


class Submission(AsyncIterator[Piece]):
    """The pieces of a request until all its `n` answers have ended.

    Raises Refused or EngineDead where a piece was due. Pieces that nobody has fetched wait here.
    Who follows it gets its first one at once, and later ones when it has its turn among others.
    """

    def __init__(
        self,
        number: int,
        answers: int,
        cancel: Callable[[Submission, int | None], None],
        turns: Turns | None = None,
    ) -> None:
        """`cancel` tells the engine to end the answer of an index; None: all that are open."""
        self.number = number
        self.open = set(range(answers))  # answers that have not ended
        self._accepted = False
        self._begun = False  # somebody has fetched a piece
        self._in_line = False
        self._cancel, self._turns = cancel, turns or Turns()
        self._pieces: deque[Piece] = deque()
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    # for who waits

    def __aiter__(self) -> Submission:
        return self

    async def __anext__(self) -> Piece:
        if pieces := await self.take(1):
            return pieces[0]
        raise StopAsyncIteration

    async def take(self, most: int) -> list[Piece]:
        """The pieces that are here, at least one and up to `most`: fewer wake-ups when several
        came. [] at the end. Raises as iteration does.
        """
        waited = not self._begun
        while not (self._pieces and waited):
            if self._pieces:
                self._enter()
            elif self._error is not None:
                raise self._error
            elif not self.open:
                return []
            await self._wait()
            waited = True
        self._begun = True
        pieces = self._pieces
        return [pieces.popleft() for _ in range(min(most, len(pieces)))]

    @property
    def more(self) -> bool:
        """Whether further pieces are here or will come."""
        return bool(self._pieces or self.open)

    async def accepted(self) -> None:
        """Returns once the engine has checked and queued the request. Raises Refused, EngineDead.

        A server that must say 200 before the first token waits for this.
        """
        while not self._accepted and not self._pieces and self.open:
            if self._error is not None:
                raise self._error
            await self._wait()

    def cancel(self, index: int | None = None) -> None:
        """End the answer of this index, or all. No piece of it comes any more."""
        ended = self.open if index is None else self.open & {index}
        if ended and self._error is None:
            self._cancel(self, index)
        self.open = self.open - ended
        if ended:
            gone = ended if index is not None else None
            self._pieces = deque(p for p in self._pieces if gone and p.index not in gone)
            self._wake()

    async def aclose(self) -> None:
        """`cancel` what is open."""
        self.cancel()

    async def __aenter__(self) -> Submission:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()

    # for who brings the news

    def accept(self) -> None:
        """The engine has queued it."""
        self._accepted = True
        self._wake()

    def deliver(self, piece: Piece) -> None:
        """One more piece. One of an answer that was cancelled meanwhile is dropped."""
        if piece.index in self.open:
            if piece.finish is not None:
                self.open.discard(piece.index)
            self._pieces.append(piece)
            if self._waiter is not None:
                if self._begun:
                    self._enter()
                else:
                    self._wake()

    def fail(self, error: Exception) -> None:
        """Nothing more will come; what came before is still handed out."""
        if self.open:
            self._error = error
            self._wake()

    async def _wait(self) -> None:
        assert self._waiter is None, "two tasks wait for one submission"
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _enter(self) -> None:
        if not self._in_line:
            self._in_line = True
            self._turns.enter(self._have_turn)

    def _have_turn(self) -> None:
        self._in_line = False
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
