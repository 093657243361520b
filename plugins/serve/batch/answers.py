"""The file of answers: what is whole there is kept, and every further line is written at once."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

import msgspec

from core.errors import UserError
from plugins.serve.batch.ids import Ids

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class _Answer(msgspec.Struct):
    custom_id: str
    response: msgspec.Raw
    error: msgspec.Raw


class Answers:
    """One line an answer, appended in one piece. A context manager: nobody else may write there.

    A process that is killed leaves at most a part of its last line, which `open` removes.
    """

    def __init__(self, path: Path) -> None:
        """UserError when the file cannot be written, or another process does."""
        self.path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise UserError(f"run.output: {path} cannot be written: {error.strerror}.") from None
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            os.close(self._file)
            raise UserError(
                f"run.output: {path} is no file. Answers are read again when the batch goes on, so "
                "they need one."
            )
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise UserError(
                f"run.output: another process is writing to {path}. Wait for it, or choose "
                "another file."
            ) from None
        self._good = 0  # bytes that are whole lines
        self.count = 0

    def done(self) -> Ids:
        """The names that have an answer; half a line at the end is cut off.

        UserError for a line that is no answer.
        """
        found = Ids()
        decode = msgspec.json.Decoder(_Answer).decode
        with os.fdopen(os.dup(self._file), "rb") as file:
            file.seek(0)
            for number, line in enumerate(file, 1):
                whole = line.endswith(b"\n")
                try:
                    found.add(decode(line).custom_id)
                except (msgspec.MsgspecError, ValueError):
                    if not whole:
                        break
                    raise UserError(
                        f"run.output: {self.path}:{number} is no answer of a batch. Choose another "
                        "file, or remove the line; what is there is never overwritten."
                    ) from None
                self._good += len(line)
                if not whole:
                    os.write(self._file, b"\n")
                    self._good += 1
        os.ftruncate(self._file, self._good)
        self.count = len(found)
        return found

    def append(self, line: bytes) -> None:
        """One more answer. UserError when there is no room for it; the file ends before it then."""
        left = memoryview(line)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            os.ftruncate(self._file, self._good)
            if error.errno not in FULL:
                raise
            raise UserError(
                f"{self.path} cannot be written: {error.strerror}. {self.count} answers are there, "
                "all of them whole. Make room and run the same again: it goes on from there."
            ) from None
        self._good += len(line)
        self.count += 1

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *_: object) -> None:
        os.fsync(self._file)
        os.close(self._file)
