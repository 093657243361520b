"""Encoding that lets other threads run gives the same ids, and lets them run."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.text import Tokenizer
from models.qwen3 import find_model


def opened(lets_others_run: bool) -> Tokenizer:
    folder = find_model("tiny")
    assert folder is not None
    tokenizer = Tokenizer.open(folder)
    tokenizer.lets_others_run = lets_others_run
    return tokenizer


USUAL, BESIDE = opened(False), opened(True)


@given(st.text(), st.booleans())
def test_the_ids_are_the_same(text: str, special: bool) -> None:
    assert BESIDE.encode(text, special) == USUAL.encode(text, special)


@pytest.mark.parametrize("tokenizer", [BESIDE])
def test_other_threads_run_meanwhile(tokenizer: Tokenizer) -> None:
    text = "All is well with the world, and nothing has to be said. " * 8000
    took = []

    def encode() -> None:
        start = time.monotonic()
        tokenizer.encode(text)
        took.append(time.monotonic() - start)

    thread = threading.Thread(target=encode)
    thread.start()
    turns = 0
    while thread.is_alive():
        time.sleep(0.001)
        turns += 1
    # a lock that is held all the time lets this thread have one turn before, and one after
    assert turns > 10
    assert took[0] > 0.02
