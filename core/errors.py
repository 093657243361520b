"""What crosses every layer: a user's mistake, the end of an engine, the end of a rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from core.visible import visible


class UserError(ValueError):
    """Something the user can mend. The message is a sentence (one a line) that says how.

    A ValueError, because scripts for vLLM catch that around what may be refused. `str` shows it,
    with what must not reach a terminal escaped: it names what strangers have made.
    """

    def __str__(self) -> str:
        return visible(super().__str__())


class RankDone(SystemExit):
    """This process was a rank that follows another one's plans, and the engine has been closed.

    As nothing else is left to do here, an executor ends the process with it, status 0.
    """


class EngineDead(RuntimeError):
    """A worker is gone; the message holds its traceback or exit code. Make a new engine."""


class Mistakes:
    """Mistakes of checks that do not need one another, so that all are told at once.

    >>> mistakes = Mistakes()
    >>> with mistakes.noted():
    ...     check_this()
    >>> with mistakes.noted():
    ...     check_that()
    >>> mistakes.tell()
    """

    def __init__(self) -> None:
        self.lines: dict[str, None] = {}

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Keep the UserError of a block for later; the block ends there."""
        try:
            yield
        except UserError as error:
            self.add(str(error))

    def add(self, sentences: str) -> None:
        """Keep what a UserError would say, a mistake a line."""
        self.lines |= dict.fromkeys(sentences.splitlines())

    def tell(self) -> None:
        """Raise one UserError with every mistake; nothing when there is none."""
        if self.lines:
            raise UserError("\n".join(self.lines))
