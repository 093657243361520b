"""The two errors that cross every layer: a user's mistake, and an engine that can no longer run."""

from __future__ import annotations


class UserError(Exception):
    """Something the user can mend. The message is a sentence (one a line) that says how."""


class EngineDead(RuntimeError):
    """A worker is gone; the message holds its traceback or exit code. Make a new engine."""
