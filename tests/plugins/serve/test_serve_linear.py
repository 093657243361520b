"""Reading an answer takes time in proportion to its length, in whatever pieces it comes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from core.interfaces import Dialect
from plugins.serve.text.replies import Reading, Reply

DIALECT = Dialect(thinking=("<think>", "</think>"), tool_call=("<tool_call>", "</tool_call>"))
READING = Reading(DIALECT, thinking=True, tools=True)
HEAD = '<tool_call>{"name": "f", "arguments": {"x": '

LONG: dict[str, Callable[[int], str]] = {
    "words": lambda n: "abc " * n,
    "blanks": lambda n: "Said." + "\n\n " * n,
    "blanks first": lambda n: "\n \n" * n,
    "thoughts": lambda n: "<think>" + "hm " * n,
    "newlines in thoughts": lambda n: "<think>hm" + "\n\n\n" * n,
    "a list of arguments": lambda n: HEAD + "[" + "1, " * n + "1]}}</tool_call>",
    "brackets": lambda n: HEAD + "[[[" * n,
    "a number": lambda n: HEAD + "123" * n,
    "a fraction": lambda n: HEAD + "0." + "333" * n,
    "a string": lambda n: HEAD + '"' + "abc" * n + '"}}</tool_call>',
    "closing tags in a string": lambda n: HEAD + '"' + "</tool_call>" * n + '"}}</tool_call>',
    "arguments that are none": lambda n: HEAD + "1,," + "abc" * n,
    "arguments before the name": lambda n: '<tool_call>{"arguments": {"x": "' + "abc" * n,
    "a name": lambda n: '<tool_call>{"name": "' + "abc" * n,
    "blanks in a call": lambda n: "<tool_call>" + " \n " * n,
    "a call without an end": lambda n: HEAD + "1}}" + "abc" * n,
    "what is no call": lambda n: "<tool_call>" + "abc" * n,
    "many calls": lambda n: (HEAD + "1}}</tool_call>\n") * (n // 10),
}
EACH = pytest.mark.parametrize("kind", LONG)
BOTH = pytest.mark.parametrize("live", [True, False])


def read(text: str, live: bool) -> None:
    """In pieces of three characters."""
    reply = Reply(READING, live=live)
    for at in range(0, len(text), 3):
        reply.take(text[at : at + 3])
    reply.finish()


def lines(work: Callable[[], None]) -> int:
    """How many lines of Python are run."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@EACH
@BOTH
def test_twice_as_long_an_answer_takes_twice_the_steps(kind: str, live: bool) -> None:
    once, twice = (lines(lambda n=n: read(LONG[kind](n), live)) for n in (100, 200))

    assert twice < 2.2 * once


@pytest.mark.speed
@EACH
@BOTH
def test_a_long_answer_takes_little_of_the_event_loop(kind: str, live: bool) -> None:
    """Where all of it is looked at again, in C, this is fast."""
    text = LONG[kind](10_000)
    began = time.process_time()
    read(text, live)
    each = (time.process_time() - began) / (len(text) / 3)
    print(f"{kind}: {1e6 * each:.1f} us a piece")
    assert each < 30e-6
