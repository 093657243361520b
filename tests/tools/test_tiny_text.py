"""The tiny model's text: cleaning, and a split whose parts share nothing."""

from __future__ import annotations

import random

from tools.tiny_text import PARTS, blocks, clean, part_of, split, words


def document(seed: int, count: int = 400) -> str:
    rng = random.Random(seed)
    names = ["".join(rng.choices("abcdefghij", k=rng.randint(2, 9))) for _ in range(300)]
    return "\n\n".join(" ".join(rng.choices(names, k=30)).capitalize() + "." for _ in range(count))


def test_parts_share_no_paragraph() -> None:
    shared = document(7, 40)  # the same pages inside two books
    sections = [(f"book {n}", f"key {n}", document(n) + "\n\n" + shared) for n in range(12)]
    parts = split(sections)
    paragraphs = {p: {q for _, b in parts[p] for q in b.split("\n\n")} for p in PARTS}
    assert all(paragraphs.values())
    assert not paragraphs["train"] & paragraphs["heldout"]
    assert not paragraphs["train"] & paragraphs["validation"]
    assert not paragraphs["validation"] & paragraphs["heldout"]


def test_split_depends_on_the_key_alone() -> None:
    assert [part_of(f"k {n}") for n in range(50)] == [part_of(f"k {n}") for n in range(50)]
    counts = [part_of(f"key {n}") for n in range(5000)]
    assert 0.08 < counts.count("heldout") / 5000 < 0.12
    assert 0.01 < counts.count("validation") / 5000 < 0.03


def test_same_chapter_of_two_translations_goes_to_one_part() -> None:
    sections = [
        (s, f"bible {n}", document(100 * n + i, 20)) for i, s in enumerate("ab") for n in range(90)
    ]
    parts = split(sections)
    sizes = {name: [s for s, _ in found] for name, found in parts.items()}
    assert sizes["heldout"].count("a") == sizes["heldout"].count("b") > 0


def test_blocks_keep_every_paragraph_in_order() -> None:
    text = document(3)
    assert "\n\n".join(blocks(text, 5000)) == text


def test_clean_leaves_plain_paragraphs() -> None:
    raw = "\u201cIt\u2019s _so_\u2014yes,\u201d\nhe said.[1]\n\n* * *\n\n[Footnote 1: a]\n\nEnd.\n"
    assert clean(raw) == '"It\'s so--yes," he said.\n\nEnd.'


def test_words_are_lower_case_with_inner_apostrophes() -> None:
    assert words("Don't 'stop', O'Brien 12!") == ["don't", "stop", "o'brien"]
