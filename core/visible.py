"""Text from strangers, as a terminal may show it: nothing in it moves, colours, hides or reorders.

Names of tensors, keys of files and messages of plugins come from whoever made them. An escape
sequence in one would steer the terminal that an error is printed on, and a bidirectional override
would make it read as something else.
"""

from __future__ import annotations

import logging
import sys

LINES = "\n\t"
"""What stays of them in text that has lines."""


def visible(text: str, keep: str = LINES) -> str:
    """`text` with everything escaped that `repr` would escape, but for the characters in `keep`.

    What is visible already stays as it is, backslashes too, so that doing it twice changes nothing.

    >>> visible("weight\\x1b[31m")
    'weight\\\\x1b[31m'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


def visible_record(record: logging.LogRecord) -> bool:
    """A filter for a logger: its messages and their tracebacks become visible. None is dropped."""
    message = record.getMessage()
    if not message.isprintable():
        record.msg, record.args = visible(message), ()
    if record.exc_info and not record.exc_text:
        # a formatter takes what is here already
        record.exc_text = visible(logging.Formatter().formatException(record.exc_info))
    return True


def say(text: str) -> None:
    """A line for people, on standard error."""
    print(visible(text), file=sys.stderr, flush=True)
