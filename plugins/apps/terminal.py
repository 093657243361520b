"""What apps share at the terminal: tables, dim text, input, and Ctrl-C that stops one answer."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TextIO

from core.errors import UserError
from core.visible import visible


def interactive(stream: TextIO) -> bool:
    """Whether a person sees `stream` on a terminal."""
    return stream.isatty()


def dim(text: str, stream: TextIO) -> str:
    """`text` in the terminal's faint style; unchanged where the output goes elsewhere."""
    return f"\033[2m{text}\033[0m" if interactive(stream) and text else text


@contextmanager
def text_from_input() -> Iterator[None]:
    """UserError if what a block reads from standard input is not in the encoding that it has."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise UserError(
            f"standard input is no text in {error.encoding}: {error.reason} "
            f"({error.object[error.start]:#04x}). Send it in that encoding."
        ) from None


CONTROLS = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)], "\N{REPLACEMENT CHARACTER}")


def printable(text: str, stream: TextIO) -> str:
    """`text` from a model without the characters that would move or recolour a terminal."""
    return text.translate(CONTROLS) if interactive(stream) else text


def show_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[int] = (),
    title: str = "",
    stream: TextIO | None = None,
) -> None:
    """Print rows under a header: a drawn table on a terminal, plain columns otherwise.

    `right` numbers the columns that are flushed right.
    """
    stream = stream or sys.stdout
    header, rows = _shown(header), [_shown(row) for row in rows]
    title = visible(title, keep="")
    if interactive(stream):
        from rich.console import Console
        from rich.table import Table

        table = Table(title=title or None, title_justify="left")
        for i, name in enumerate(header):
            table.add_column(name, justify="right" if i in right else "left", overflow="fold")
        for row in rows:
            table.add_row(*row)
        Console(file=stream, markup=False, highlight=False).print(table)
        return
    if title:
        print(title, file=stream)
    for line in plain_columns(header, rows, right=right):
        print(line, file=stream)


def _shown(cells: Sequence[str]) -> list[str]:
    return [visible(cell, keep="") for cell in cells]


def plain_columns(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()
) -> list[str]:
    """Header and rows as lines of aligned columns, two spaces apart."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return [
        "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


class Interrupt:
    """Whether Ctrl-C was pressed; false until then."""

    def __init__(self) -> None:
        self.pressed = False

    def __bool__(self) -> bool:
        return self.pressed


@contextmanager
def one_interrupt() -> Iterator[Interrupt]:
    """Within the block the first Ctrl-C only sets the flag, so a step is never cut in half.

    The second one raises KeyboardInterrupt as ever. Signals belong to the main thread; in another
    the flag stays false.
    """
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return

    def press(number: int, frame: FrameType | None) -> None:
        if interrupt.pressed:
            raise KeyboardInterrupt
        interrupt.pressed = True

    before = signal.signal(signal.SIGINT, press)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
