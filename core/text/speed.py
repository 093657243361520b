"""The time that detokenizing takes a token, on a vocabulary made up for the purpose."""

from __future__ import annotations

from itertools import product
from time import perf_counter

from core.text.detokenize import Detokenizer
from core.text.interface import TokenizerLike
from core.text.tokenizer import Tokenizer

STOPS = ("\n\nQuestion:", "</answer>", "### END ###", "User said:")


def made_up_tokenizer() -> Tokenizer:
    """A byte-level vocabulary: each byte, and 8,000 pieces of words with and without a space."""
    from tokenizers import Tokenizer as RawTokenizer
    from tokenizers import decoders, models, pre_tokenizers

    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    for first, vowel, last in product("bcdfghklmnprstvw", "aeiou", ("", *"bdklmnrst")):
        for ending in ("", "e", "ing", "ed", "ly"):
            piece = first + vowel + last + ending
            tokens += [piece, "Ġ" + piece]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    raw = RawTokenizer(models.BPE(vocab=vocabulary, merges=[]))
    raw.decoder = decoders.ByteLevel()
    return Tokenizer(raw)


def measure_detokenizing(
    tokenizer: TokenizerLike | None = None,
    *,
    requests: int = 64,
    tokens: int = 256,
    stop: tuple[str, ...] = STOPS,
    repeats: int = 5,
) -> float:
    """Microseconds that `Detokenizer.push` takes a token, on one core.

    `requests` requests are detokenized side by side, one id each a step as in decoding, with `stop`
    to watch for. The best of `repeats` runs counts: anything slower is another process's doing.
    The ids are spread over the vocabulary, so one in 30 or so is a single byte of a character.
    """
    tokenizer = tokenizer or made_up_tokenizer()
    size = tokenizer.vocab_size
    columns = [
        [[(7919 * request + 104729 * step) % size] for step in range(tokens)]
        for request in range(requests)
    ]
    best = float("inf")
    for _ in range(repeats):
        streams = [Detokenizer(tokenizer, stop=stop) for _ in range(requests)]
        begin = perf_counter()
        for step in range(tokens):
            for stream, column in zip(streams, columns, strict=True):
                stream.push(column[step])
        best = min(best, perf_counter() - begin)
        assert all(stream.stopped is None for stream in streams), "these ids must run to the end"
    return best / (requests * tokens) * 1e6


if __name__ == "__main__":
    print(f"{measure_detokenizing():.2f} microseconds a token, {len(STOPS)} stop strings")
