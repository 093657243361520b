"""What lies beside a tiny model to measure it by: held-out text, and the words of its training."""

from __future__ import annotations

import lzma
from pathlib import Path

from tools.tiny_text import load, words

EXCERPT, WORDS = "heldout.txt", "words.txt.xz"
EXCERPT_SOURCES = ("tom-sawyer", "alice", "moby-dick", "wilde-hardy-poe", "austen")


def write_excerpt(text_folder: Path, model_folder: Path) -> None:
    """Put a held-out block of each excerpt source, and the training words, beside the model."""
    held = load(text_folder / "heldout.json.xz")
    picked = [next((t for s, t in held if s == name), "") for name in EXCERPT_SOURCES]
    (model_folder / EXCERPT).write_text("\n\n".join(t for t in picked if t) + "\n", "utf-8")
    found = {w for _, text in load(text_folder / "train.json.xz") for w in words(text)}
    packed = lzma.compress("\n".join(sorted(found)).encode(), preset=9)
    (model_folder / WORDS).write_bytes(packed)


def read_excerpt(model_folder: Path) -> str:
    """The held-out excerpt."""
    return (model_folder / EXCERPT).read_text("utf-8")


def read_words(model_folder: Path) -> set[str]:
    """The words of the training text."""
    return set(lzma.decompress((model_folder / WORDS).read_bytes()).decode().split("\n"))
