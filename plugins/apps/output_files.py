"""Files that an app is told to write: looked at before the work, and told of when they fail."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from core.errors import Mistakes, UserError


def check_outputs(**files: str | None) -> None:
    """UserError with every option (`out="answers.jsonl"`) whose file cannot be written.

    Called before an app begins what takes long. None stands for no file.
    """
    mistakes = Mistakes()
    for option, path in files.items():
        if path is not None:
            with mistakes.noted(), writing(option, path):
                look_at(path)
    mistakes.tell()


@contextmanager
def writing(option: str, path: str | Path) -> Iterator[None]:
    """UserError that names the option and the file, if a block cannot write there."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"run.{option}: {path} cannot be written: {error.strerror or error}. "
            "Choose another place."
        ) from error


def write_text(option: str, path: str | Path, text: str) -> None:
    """Write a file anew. UserError if it cannot be written."""
    with writing(option, path):
        Path(path).write_text(text, encoding="utf-8")


def append_line(option: str, path: str | Path, text: str) -> None:
    """Add a line to a file. UserError if it cannot be written."""
    with writing(option, path), Path(path).open("a", encoding="utf-8") as file:
        file.write(text + "\n")


def look_at(path: str | Path) -> None:
    """OSError if no file can be written there. Nothing changes, not even for a moment:

    ranks may look at the same time, and a pipe's reader would take an end for the end.
    """
    path = Path(path)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        folder = Path(os.path.realpath(path)).parent  # a link may lead to a file that is not yet
        tempfile.TemporaryFile(dir=folder).close()  # on Linux it has no name
        return
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        path.open("ab").close()
    elif not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
