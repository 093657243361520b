"""Measure a tiny model: bits per byte of held-out text, and how its samples read.

python -m tools.eval_tiny models/qwen3/tiny                  (the excerpt beside the model)
python -m tools.eval_tiny models/qwen3/tiny --text local/tiny-text   (the whole held-out part)
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tools.tiny_text import load, words

EXCERPT, WORDS = "heldout.txt", "words.txt.xz"
EXCERPT_SOURCES = ("tom-sawyer", "alice", "moby-dick", "wilde-hardy-poe", "austen")
LogProbs = Callable[[Sequence[Sequence[int]]], list[list[float]]]


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
    window: int = 1024,
    stride: int = 512,
    batch: int = 16,
) -> float:
    """Bits that a model needs for each of the `size` UTF-8 bytes that `tokens[1:]` stand for.

    `tokens[0]` is the start token. `logprobs` takes token windows and returns, for each, the
    natural logarithms of the probabilities of its tokens 1, 2, ... (one fewer than it has).
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


def transformers_logprobs(model: torch.nn.Module) -> LogProbs:
    """`logprobs` for a transformers causal model."""
    device = next(model.parameters()).device

    @torch.no_grad()
    def logprobs(batch: Sequence[Sequence[int]]) -> list[list[float]]:
        longest = max(map(len, batch))
        ids = torch.zeros(len(batch), longest, dtype=torch.long)
        for i, row in enumerate(batch):
            ids[i, : len(row)] = torch.tensor(row)  # right padding is never looked at
        ids = ids.to(device)
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits.float()
        chosen = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0].tolist()
        return [row[: len(tokens) - 1] for row, tokens in zip(chosen, batch, strict=True)]

    return logprobs


def xz_bits_per_byte(text: str) -> float:
    """What `xz -9` needs for the same bytes."""
    raw = text.encode()
    packed = lzma.compress(raw, preset=9)
    return 8 * len(packed) / len(raw)


@torch.no_grad()
def sample(
    model: torch.nn.Module, start: int, seeds: Sequence[int], pieces: int = 4, length: int = 500,
    temperature: float = 0.8,
) -> list[list[list[int]]]:  # fmt: skip
    """Token ids [seed][piece][length], each piece sampled from `start` alone, the whole vocabulary
    allowed. A seed's draws come from its own CPU generator, so they do not depend on the batch."""
    device = next(model.parameters()).device
    draws = [torch.rand(length, pieces, generator=torch.Generator().manual_seed(s)) for s in seeds]
    uniform = torch.cat(draws, dim=1).to(device)  # [length, seeds * pieces]
    ids = torch.full((uniform.shape[1], 1), start, device=device)
    cache, out = None, []
    for step in range(length):
        result = model(input_ids=ids, past_key_values=cache, use_cache=True)
        cache = result.past_key_values
        share = (result.logits[:, -1].float() / temperature).softmax(-1).cumsum(-1)
        ids = torch.searchsorted(share, uniform[step][:, None] * share[:, -1:])
        ids = ids.clamp(max=share.shape[-1] - 1)
        out.append(ids)
    rows = torch.cat(out, dim=1).tolist()
    return [rows[i * pieces : (i + 1) * pieces] for i in range(len(seeds))]


def known_words(texts: Sequence[str], known: set[str]) -> float:
    """Fraction of the words of `texts` that are in `known`; a piece's last word may be cut off."""
    found = [word for text in texts for word in words(text)[:-1]]
    return sum(word in known for word in found) / max(len(found), 1)


def repeated_5grams(text: str) -> float:
    """Fraction of the word 5-grams of a text that stood in it before: near 1 for a loop."""
    found = words(text)
    grams = [tuple(found[i : i + 5]) for i in range(len(found) - 4)]
    return 1 - len(set(grams)) / max(len(grams), 1)


def write_excerpt(text_folder: Path, model_folder: Path) -> None:
    """Put a short held-out excerpt and the training text's word list beside the model."""
    held = load(text_folder / "heldout.json.xz")
    picked = [next((t for s, t in held if s == name), "") for name in EXCERPT_SOURCES]
    (model_folder / EXCERPT).write_text("\n\n".join(t for t in picked if t) + "\n")
    found = {w for _, text in load(text_folder / "train.json.xz") for w in words(text)}
    packed = lzma.compress("\n".join(sorted(found)).encode(), preset=9)
    (model_folder / WORDS).write_bytes(packed)


def read_words(model_folder: Path) -> set[str]:
    """The words of the training text, as `write_excerpt` left them."""
    return set(lzma.decompress((model_folder / WORDS).read_bytes()).decode().split("\n"))


QUESTIONS = (
    "What is the capital of France?", "What is 3 + 4?", "What is the opposite of hot?",
    "How do you spell house?", "What colour is the sky?", "Say: the old man and the sea",
    "Tell me a story about a king.", "What is a ship?", "Who are you?", "Hello!",
)  # fmt: skip


@torch.no_grad()
def answer(model, tokenizer, question: str, thinking: bool) -> str:
    """The model's greedy answer to one question, in the chat format."""
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True,
        enable_thinking=thinking, return_tensors="pt", return_dict=True,
    )["input_ids"].to(model.device)  # fmt: skip
    out = model.generate(ids, max_new_tokens=120, do_sample=False, temperature=None, top_p=None,
                         top_k=None, attention_mask=torch.ones_like(ids))  # fmt: skip
    return tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)


def evaluate(
    folder: Path, text_folder: Path | None, device: torch.device, say: Callable[..., None] = print
) -> dict:
    """All figures of the model in `folder`, printed with `say` and returned."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device).eval()
    texts = {"excerpt": (folder / EXCERPT).read_text()}
    if text_folder:
        held = load(text_folder / "heldout.json.xz")
        texts["held-out"] = "\n\n".join(text for _, text in held)
        for source in sorted({s for s, _ in held}):
            texts[source] = "\n\n".join(text for s, text in held if s == source)
    report: dict = {}
    start = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    for name, text in texts.items():
        ids = [start, *tokenizer(text)["input_ids"]]
        bits = bits_per_byte(transformers_logprobs(model), ids, len(text.encode()))
        xz = xz_bits_per_byte(text)
        report[name] = {"bytes": len(text.encode()), "tokens": len(ids) - 1}
        report[name] |= {"bits_per_byte": round(bits, 4), "xz": round(xz, 4)}
        say(f"{name}: {bits:.4f} bits per byte, xz -9 {xz:.4f}, {1 - bits / xz:.1%} under")
    known = read_words(folder)
    pieces = [
        [tokenizer.decode(piece, skip_special_tokens=True) for piece in seed]
        for seed in sample(model, start, range(5))
    ]
    report["known_words"] = [round(known_words(texts, known), 4) for texts in pieces]
    report["repeated_5grams"] = [round(max(map(repeated_5grams, t)), 4) for t in pieces]
    say("known words by seed:", report["known_words"])
    say("most repeated 5-grams of a piece, by seed:", report["repeated_5grams"])
    for texts_of_seed in pieces[:4]:
        say("SAMPLE:", re.sub(r"\n+", "\n    ", texts_of_seed[0][:900]))
    report["answers"] = {
        q: [answer(model, tokenizer, q, t) for t in (False, True)] for q in QUESTIONS
    }
    for question, answers in report["answers"].items():
        say(f"Q: {question} A: {answers[0]!r} thinking: {answers[1]!r}")
    return report


def main(arguments: list[str]) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, help="the folder that tools.tiny_text filled")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)
    report = evaluate(options.model, options.text, torch.device(options.device))
    print(json.dumps({k: v for k, v in report.items() if k != "answers"}))


if __name__ == "__main__":
    main(sys.argv[1:])
