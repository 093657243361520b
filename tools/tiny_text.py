"""Fetch, clean and split the tiny model's text: `python -m tools.tiny_text local/tiny-text`.

Writes train.json.xz, validation.json.xz and heldout.json.xz (lists of [source, text] blocks of
about 12,000 characters), definitions.json.xz and summary.json. The split goes by blocks, is the
same on every machine, and a held-out block is seen neither in training nor by the tokenizer.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tools.tiny_sources import SOURCES, WORDNET, fetch, wordnet_definitions

Block = tuple[str, str]  # (source, text)
BLOCK_CHARACTERS = 12_000
HELD_OUT, VALIDATION = 0.10, 0.02
PARTS = ("train", "validation", "heldout")


def clean(text: str) -> str:
    """Plain ASCII punctuation, one line a paragraph, a blank line between paragraphs."""
    for old, new in (
        ("\u201c", '"'), ("\u201d", '"'), ("\u2018", "'"), ("\u2019", "'"), ("`", "'"),
        ("\u2014", "--"), ("\u2013", "-"), ("\u2026", "..."), ("\ufeff", ""), ("\xa0", " "),
    ):  # fmt: skip
        text = text.replace(old, new)
    text = re.sub(r"\[(Illustration|Footnote|Sidenote|[A-Z0-9]{1,2}:)[^\]]*\]", "", text)
    text = re.sub(r"\[[A-Z0-9]{1,2}\]|\(Applause\.?\)", "", text)
    text = re.sub(r"_([^_\n]{1,200})_", r"\1", text)
    text = re.sub(r"[ \t]*(\* ){2,}\*?", " ", text)
    kept = []
    for piece in re.split(r"\n[ \t]*\n", text):
        line = " ".join(piece.split())
        if re.search(r"[a-z]", line) and "Gutenberg" not in line and "\ufffd" not in line:
            kept.extend(paragraphs(line))
    return "\n\n".join(kept)


def paragraphs(line: str, limit: int = 1200, size: int = 600) -> Iterator[str]:
    """Cut a paragraph longer than `limit` at sentence ends into ones of about `size` characters."""
    if len(line) <= limit:
        yield line
        return
    current: list[str] = []
    for sentence in re.split(r"(?<=[.?!][\"']) |(?<=[.?!]) (?=[A-Z\"'])", line):
        current.append(sentence)
        if sum(map(len, current)) >= size:
            yield " ".join(current)
            current = []
    if current:
        yield " ".join(current)


def blocks(text: str, size: int = BLOCK_CHARACTERS) -> Iterator[str]:
    """Consecutive whole paragraphs of about `size` characters together."""
    current: list[str] = []
    length = 0
    for paragraph in text.split("\n\n"):
        current.append(paragraph)
        length += len(paragraph) + 2
        if length >= size:
            yield "\n\n".join(current)
            current, length = [], 0
    if length >= 200:
        yield "\n\n".join(current)


def part_of(key: str) -> str:
    """The part a block belongs to, from its key alone: a hash, so no block depends on another."""
    place = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64
    if place < HELD_OUT:
        return "heldout"
    return "validation" if place < HELD_OUT + VALIDATION else "train"


def split(sections: Iterable[tuple[str, str, str]]) -> dict[str, list[Block]]:
    """Blocks of each part from (source, key, text) sections.

    The same paragraph (a refrain, a chapter printed twice) may stand in one part only: what the
    held-out and validation parts have is dropped from the training text.
    """
    parts: dict[str, list[Block]] = {name: [] for name in PARTS}
    for source, key, text in sections:
        for number, block in enumerate(blocks(clean(text))):
            parts[part_of(f"{key} {number}")].append((source, block))
    seen: set[str] = set()
    for name in ("heldout", "validation", "train"):
        rest = []
        for source, block in parts[name]:
            fresh = [p for p in block.split("\n\n") if len(p) < 80 or p not in seen]
            if fresh:
                rest.append((source, "\n\n".join(fresh)))
        parts[name] = rest
        seen.update(p for _, block in rest for p in block.split("\n\n"))
    return parts


def words(text: str) -> list[str]:
    """Lower-case words, an inner apostrophe kept: what "a word of the training text" means."""
    return re.findall(r"[a-z]+(?:'[a-z]+)*", text.lower())


def save(path: Path, value: object) -> None:
    """Write JSON, xz-compressed."""
    path.write_bytes(lzma.compress(json.dumps(value).encode(), preset=6))


def load(path: Path) -> list:
    """Read what `save` wrote."""
    return json.loads(lzma.decompress(path.read_bytes()))


def main(arguments: list[str]) -> None:
    """Command line: one argument, the folder to fill."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--packages", type=Path, help="where to keep the downloaded archives")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    packages = options.packages or options.folder / "packages"
    sections = []
    for source in SOURCES:
        archive = fetch(source, packages)
        sections += [(source.name, key, text) for key, text in source.read(archive)]
    parts = split(sections)
    summary: dict[str, dict[str, int]] = {}
    for name, found in parts.items():
        save(options.folder / f"{name}.json.xz", found)
        for source, block in found:
            row = summary.setdefault(source, dict.fromkeys(PARTS, 0))
            row[name] += len(block.encode())
    save(options.folder / "definitions.json.xz", wordnet_definitions(fetch(WORDNET, packages)))
    (options.folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    for source, row in summary.items():
        print(f"{source:22}", *(f"{part} {size:>10,}" for part, size in row.items()))


if __name__ == "__main__":
    main(sys.argv[1:])
