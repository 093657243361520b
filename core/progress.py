"""Progress bars on a terminal, nothing where there is none; and what a long start was spent on."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

log = logging.getLogger("plait")

LONG = 1.0  # seconds that are worth a line


@contextmanager
def told_if_slow(what: str) -> Iterator[None]:
    """Say in the log for how long `what` was done, if it was long."""
    began = time.monotonic()
    yield
    if (spent := time.monotonic() - began) >= LONG:
        log.info("%s: %.1f s", what, spent)


class Bar(Protocol):
    def advance(self, tokens: int) -> None:
        """One more request is done, with so many new tokens."""


class _Silent:
    def advance(self, tokens: int) -> None:
        return None


@contextmanager
def progress_bar(total: int, label: str, show: bool) -> Iterator[Bar]:
    """A bar over `total` requests with the rate of tokens, when `show` and on a terminal."""
    if not (show and sys.stderr.isatty()):
        yield _Silent()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    ) as progress:
        task = progress.add_task(label, total=total, rate="")
        began = time.monotonic()
        tokens_made = 0

        class _Shown:
            def advance(self, tokens: int) -> None:
                nonlocal tokens_made
                tokens_made += tokens
                rate = tokens_made / max(time.monotonic() - began, 1e-9)
                progress.update(task, advance=1, rate=f"{rate:.0f} tok/s")

        yield _Shown()


@contextmanager
def loading_bar(label: str = "loading weights") -> Iterator[Callable[[int, int], None]]:
    """A bar over the weights: call what it yields with (bytes written, bytes in all)."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
