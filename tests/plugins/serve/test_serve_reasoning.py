"""Thoughts and answers are told apart, whatever the parts are in which the text arrives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugins.serve.text.reasoning import ReasoningSplitter, begun_tag

TAGS = ("<think>", "</think>")


def divide(parts: list[str], opened: bool = False) -> tuple[str, str]:
    splitter = ReasoningSplitter(TAGS, opened=opened)
    found = [*(splitter.push(part) for part in parts), splitter.finish()]
    return "".join(f.thought for f in found), "".join(f.said for f in found)


@pytest.mark.parametrize(
    ("text", "thought", "said"),
    [
        ("<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
        ("\n<think>Hm.</think>Yes.", "Hm.", "Yes."),
        ("<think>\n\n</think>\n\nYes.\n", "", "Yes.\n"),
        ("<think>\nHm, <b> and </thin", "Hm, <b> and </thin", ""),
        ("Yes. <think>Hm.</think>", "", "Yes. <think>Hm.</think>"),
        ("  Yes", "", "  Yes"),
        ("<thinking>", "", "<thinking>"),
        ("<thi", "", "<thi"),
        ("", "", ""),
        ("<think>a</think>b</think>c", "a", "b</think>c"),
        ("<think>\n  code\n\n  more\n</think>\n  x", "  code\n\n  more", "  x"),
    ],
)
def test_thoughts_end_at_their_tag(text: str, thought: str, said: str) -> None:
    assert divide([text]) == (thought, said)


def test_an_answer_may_begin_inside_of_thoughts() -> None:
    assert divide(["\nHm.\n</think>\n\nYes."], opened=True) == ("Hm.", "Yes.")
    assert divide(["Hm."], opened=True) == ("Hm.", "")


PARTS = st.lists(st.sampled_from(["<think>", "</think>", "\n", " ", "a", "<", "</", "think>", "é"]))


@given(PARTS, st.data(), st.booleans())
def test_parts_do_not_matter(words: list[str], data: st.DataObject, opened: bool) -> None:
    text = "".join(words)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = divide([text], opened)
    assert divide(parts, opened) == whole
    assert divide(list(text), opened) == whole


@given(PARTS)
def test_only_tags_and_newlines_at_them_go(words: list[str]) -> None:
    text = "".join(words)
    thought, said = divide([text])
    kept = thought + said
    if not text.lstrip().startswith("<think>"):
        assert (thought, said) == ("", text)
    else:
        rest = text.replace("<think>", "", 1).replace("</think>", "", 1)
        assert kept.replace("\n", "") == rest.lstrip().replace("\n", "") or kept.replace(
            "\n", ""
        ) == text.lstrip()[len("<think>") :].replace("</think>", "", 1).replace("\n", "")


def test_what_is_decided_is_sent_at_once() -> None:
    splitter = ReasoningSplitter(TAGS)
    assert splitter.push("<think>\nHm, so") == ("Hm, so", "")
    assert splitter.push(" it </th") == (" it ", "")
    assert splitter.push("is") == ("</this", "")
    assert splitter.push("</think>\n") == ("", "")
    assert not splitter.passing
    assert splitter.push("A") == ("", "A")
    assert splitter.passing


def test_the_front_of_a_tag_is_found() -> None:
    assert begun_tag("abc</th", "</think>") == 4
    assert begun_tag("abc<", "</think>") == 1
    assert begun_tag("abc", "</think>") == 0
    assert begun_tag("</think>", "</think>") == 0
