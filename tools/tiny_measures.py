"""What is measured of a tiny model: bits per byte, and the words and repetitions of its samples."""

from __future__ import annotations

import lzma
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from tools.tiny_text import words

LogProbs = Callable[[Sequence[Sequence[int]]], list[list[float]]]
"""For each window of token ids: the natural logarithms of the probabilities of its tokens 1, 2,
..., given those before them. One number fewer than the window has tokens."""

WINDOW, STRIDE = 1000, 500
"""Tokens. An engine needs room for one more in the model's context of 1,024."""


def windows(count: int, window: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """(begin, end, first scored) of the windows over `count` tokens, the first of which is given.

    Every token but number 0 is scored once: the first window scores all of its tokens, each later
    one the `stride` new ones at its end, so they see at least window - stride tokens before them.
    """
    assert 0 < stride < window
    done = 1
    while done < count:
        end = min(count, window if done == 1 else done + stride)
        yield max(0, end - window), end, done
        done = end


def bits_per_byte(
    logprobs: LogProbs,
    tokens: Sequence[int],
    size: int,
    window: int = WINDOW,
    stride: int = STRIDE,
    batch: int = 16,
) -> float:
    """Bits that a model needs for each of the `size` UTF-8 bytes that `tokens[1:]` stand for.

    `tokens[0]` is the start token. `batch` windows are scored at a time.
    """
    spans = list(windows(len(tokens), window, stride))
    total = 0.0
    for i in range(0, len(spans), batch):
        part = spans[i : i + batch]
        scored = logprobs([tokens[begin:end] for begin, end, _ in part])
        for (begin, end, first), row in zip(part, scored, strict=True):
            assert len(row) == end - begin - 1, "a window gives one number fewer than its tokens"
            total += math.fsum(row[first - begin - 1 :])
    return -total / math.log(2) / size


def xz_bits_per_byte(text: str) -> float:
    """What `xz -9` needs for the same bytes."""
    raw = text.encode()
    packed = lzma.compress(raw, preset=9)
    return 8 * len(packed) / len(raw)


def known_words(texts: Sequence[str], known: set[str]) -> float:
    """Fraction of the words of `texts` that are in `known`; a piece's last word may be cut off."""
    found = [word for text in texts for word in words(text)[:-1]]
    return sum(word in known for word in found) / max(len(found), 1)


def grams(text: str, size: int = 5) -> Counter[tuple[str, ...]]:
    """How often each run of `size` words stands in a text."""
    found = words(text)
    return Counter(tuple(found[i : i + size]) for i in range(len(found) - size + 1))


def repeated_5grams(text: str) -> float:
    """Fraction of the word 5-grams of a text that stood in it before: near 1 for a loop."""
    found = grams(text)
    return 1 - len(found) / max(found.total(), 1)
