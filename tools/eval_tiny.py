"""Measure a tiny model: bits per byte of held-out text, and how its samples read.

    python -m tools.eval_tiny models/qwen3/tiny                   # the excerpt beside the model
    python -m tools.eval_tiny models/qwen3/tiny --engine plait --tensor 2
    python -m tools.eval_tiny models/qwen3/tiny --text local/tiny-text   # all that was held out

`--engine` says who computes the probabilities: transformers, the reference, or Plait, which should
find the same bits. Samples and answers are always Plait's. All is computed in float32.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from core import LLM
from tools.output_file import output_file
from tools.tiny_engines import START, answers, plait_logprobs, samples, transformers_logprobs
from tools.tiny_heldout import read_excerpt, read_words
from tools.tiny_measures import (
    LogProbs,
    bits_per_byte,
    known_words,
    repeated_5grams,
    xz_bits_per_byte,
)
from tools.tiny_text import load

SEEDS = range(5)
QUESTIONS = (
    "What is the capital of France?", "What is 3 + 4?", "What is the opposite of hot?",
    "How do you spell house?", "What colour is the sky?", "Say: the old man and the sea",
    "Tell me a story about a king.", "What is a ship?", "Who are you?", "Hello!",
)  # fmt: skip


def evaluate(
    folder: Path,
    text_folder: Path | None,
    logprobs: LogProbs,
    llm: LLM,
    say: Callable[..., None] = print,
) -> dict:
    """All figures of the model in `folder`, printed with `say` and returned."""
    texts = {"excerpt": read_excerpt(folder)}
    if text_folder:
        held = load(text_folder / "heldout.json.xz")
        texts["held-out"] = "\n\n".join(text for _, text in held)
        for source in sorted({s for s, _ in held}):
            texts[source] = "\n\n".join(text for s, text in held if s == source)
    report: dict = {}
    for name, text in texts.items():
        row = report[name] = text_figures(logprobs, llm, text)
        bits, xz = row["bits_per_byte"], row["xz"]
        say(f"{name}: {bits:.4f} bits per byte, xz -9 {xz:.4f}, {1 - bits / xz:.1%} under")
    known, pieces = read_words(folder), samples(llm, SEEDS)
    report["known_words"] = [round(known_words(texts, known), 4) for texts in pieces]
    report["repeated_5grams"] = [round(max(map(repeated_5grams, t)), 4) for t in pieces]
    say("known words by seed:", report["known_words"])
    say("most repeated 5-grams of a piece, by seed:", report["repeated_5grams"])
    for texts_of_seed in pieces[:4]:
        say("sample:", re.sub(r"\n+", "\n    ", texts_of_seed[0][:600]))
    both = zip(*(answers(llm, QUESTIONS, thinking) for thinking in (False, True)), strict=True)
    report["answers"] = dict(zip(QUESTIONS, map(list, both), strict=True))
    for question, (plain, thought) in report["answers"].items():
        say(f"{question!r} gets {plain!r}, with thinking {thought!r}")
    return report


def text_figures(logprobs: LogProbs, llm: LLM, text: str) -> dict:
    """Sizes of a text, and the bits per byte that the model and `xz -9` need for it."""
    tokenizer = llm.get_tokenizer()
    ids = tokenizer.encode(START) + tokenizer.encode(text)
    size = len(text.encode())
    bits, xz = bits_per_byte(logprobs, ids, size), xz_bits_per_byte(text)
    return {
        "bytes": size, "tokens": len(ids) - 1, "bits_per_byte": round(bits, 4), "xz": round(xz, 4),
    }  # fmt: skip


def main(arguments: list[str]) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, help="the folder that tools.tiny_text filled")
    parser.add_argument("--engine", choices=("transformers", "plait"), default="transformers")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tensor", type=int, default=1, help="ranks of Plait")
    parser.add_argument("--report", type=output_file, help="where to write the figures as JSON")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    settings = {"device": options.device, "dtype": "float32"}
    with LLM(options.model, tensor_parallel_size=options.tensor, **settings) as llm:
        if options.engine == "plait":
            logprobs = plait_logprobs(llm)
        else:
            logprobs = transformers_logprobs(options.model, options.device)
        report = evaluate(options.model, options.text, logprobs, llm)
    print(f"{time.monotonic() - started:.0f} s")
    if options.report:
        options.report.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
