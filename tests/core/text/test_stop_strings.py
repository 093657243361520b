"""Stop strings: found across tokens, never leaked, and nothing held back without need."""

from __future__ import annotations

import gc
import time
import weakref

import pytest
from collected import Collected
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import tokenizer

from core.errors import UserError
from core.text.speed import STOPS, made_up_tokenizer, measure_detokenizing
from core.text.stops import stop_strings

READER = tokenizer("bytes")


def first_stop(text: str, stops: list[str], begin: int = 0) -> tuple[int, str] | None:
    """Where the first stop string ends behind `begin`, by brute force; the longest that does."""
    for end in range(begin + 1, len(text) + 1):
        if found := [stop for stop in stops if text[:end].endswith(stop)]:
            return end, max(found, key=len)
    return None


def undecided(text: str, stops: list[str]) -> int:
    """Length of the longest tail that is a true beginning of a stop string, by brute force."""
    return max(n for n in range(len(text) + 1) if n == 0 or _begins(text[-n:], stops))


def _begins(tail: str, stops: list[str]) -> bool:
    return any(stop.startswith(tail) and stop != tail for stop in stops)


letters = st.text("ab", max_size=24) | st.text("ab😀", max_size=24)
some_stops = st.lists(st.text("ab😀", min_size=1, max_size=5), min_size=1, max_size=4)


@settings(max_examples=300, deadline=None)
@given(text=letters, stops=some_stops, size=st.integers(1, 4), include=st.booleans())
def test_text_ends_at_the_first_stop_string(
    text: str, stops: list[str], size: int, include: bool
) -> None:
    ids = READER.encode(text)
    stream = Collected(READER, stop=stops, include_stop_str_in_output=include)
    sent = "".join([stream.push(ids[i : i + size]) for i in range(0, len(ids), size)])
    sent += stream.finish()
    if (found := first_stop(text, stops)) is None:
        assert (sent, stream.stopped, stream.consumed) == (text, None, len(ids))
    else:
        end, stop = found
        assert (sent, stream.stopped) == (text[: end if include else end - len(stop)], stop)
        assert stream.consumed == len(text[:end].encode())


@settings(max_examples=200, deadline=None)
@given(text=st.text("abc", max_size=20), stops=some_stops, minimum=st.integers(0, 20))
def test_only_what_is_undecided_is_held_back(text: str, stops: list[str], minimum: int) -> None:
    stream = Collected(READER, stop=stops)
    for number, token in enumerate(READER.encode(text), start=1):
        stream.push([token], check_stop=number > minimum)
        if stream.stopped is not None:
            break
        assert stream.text == text[: number - undecided(text[:number], stops)]


@settings(max_examples=200, deadline=None)
@given(text=st.text("ab", max_size=16), stops=some_stops, minimum=st.integers(0, 12))
def test_stops_that_end_before_min_tokens_are_passed_over(
    text: str, stops: list[str], minimum: int
) -> None:
    stream = Collected(READER, stop=stops)
    for number, token in enumerate(READER.encode(text), start=1):
        stream.push([token], check_stop=number > minimum)
    stream.finish()
    found = first_stop(text, stops, begin=minimum)
    assert stream.stopped == (found[1] if found else None)
    assert stream.text == (text[: found[0] - len(found[1])] if found else text)


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ("CDEF", ["A", "B", "", "", "", "", ""]),
        ("CDZ", ["A", "B", "", "", "CDE", "F", "X"]),
        ("EFX", ["A", "B", "C", "D", "", "", ""]),
    ],
)
def test_a_stop_string_over_several_tokens(stop: str, expected: list[str]) -> None:
    stream = Collected(READER, stop=[stop])
    assert [stream.push([token]) for token in READER.encode("ABCDEFX")] == expected
    assert stream.stopped == (stop if stop != "CDZ" else None)


def test_a_stop_string_that_begins_and_ends_inside_tokens() -> None:
    reader = made_up_tokenizer()
    ids = [reader.raw.token_to_id(token) for token in ("baking", "Ġbaked", "Ġdan")]
    assert reader.decode(ids) == "baking baked dan"
    stream = Collected(reader, stop=["ng ba"])
    assert [stream.push([token]) for token in ids] == ["baki", "", ""]
    assert (stream.stopped, stream.consumed) == ("ng ba", 2)


def test_the_first_to_be_complete_wins_however_the_ids_come() -> None:
    """So several ids in one step give the text that they would give one by one."""
    ids = READER.encode("xabcdx")
    for size in (1, 2, 6):
        stream = Collected(READER, stop=["abcd", "bc"])
        for begin in range(0, len(ids), size):
            stream.push(ids[begin : begin + size])
        assert (stream.text, stream.stopped) == ("xa", "bc")


def test_a_very_long_stop_string_is_found_in_bounded_time() -> None:
    stop = "ab" * 20_000 + "c"
    stream = Collected(READER, stop=[stop])
    begin = time.perf_counter()
    for token in READER.encode("ab" * 40_000 + "cd"):
        stream.push([token])
    assert (stream.text, stream.stopped) == ("ab" * 20_000, stop)
    assert time.perf_counter() - begin < 20


def test_held_text_is_sent_when_the_request_ends() -> None:
    stream = Collected(READER, stop=["CDEF"])
    assert stream.push(READER.encode("ABCDE")) == "AB"
    assert stream.finish() == "CDE"
    assert stream.text == "ABCDE"


def test_a_stop_may_be_one_string() -> None:
    stream = Collected(READER, stop="CD")
    assert stream.push(READER.encode("ABCDE")) == "AB"


def test_an_added_token_is_sent_whole() -> None:
    """A stop string may begin with the last character of </think>."""
    think = READER.raw.token_to_id("</think>")
    stream = Collected(READER, stop=[">\n\nNo"])
    first, *rest = READER.encode("\n\nYes")
    assert stream.push(READER.encode("so ")) == "so "
    assert stream.push([think]) == ""
    assert stream.push([first]) == ""
    assert stream.push(rest) == "</think>\n\nYes"


@settings(max_examples=200, deadline=None)
@given(
    parts=st.lists(st.sampled_from(["a", "<", "<think>", "</think>"]), max_size=10),
    stops=st.lists(st.text("a<>k", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_no_stream_ever_ends_inside_an_added_token(parts: list[str], stops: list[str]) -> None:
    ids = [READER.raw.token_to_id(part) for part in parts]
    stream, text, spans = Collected(READER, stop=stops), "", []
    for token, part in zip(ids, parts, strict=True):
        stream.push([token])
        if stream.stopped is not None:
            return
        spans.append((len(text), len(text) + len(part)))
        text += part
        cut = len(text) - undecided(text, stops)
        cut = next((start for start, end in spans if start < cut < end), cut)
        assert stream.text == text[:cut]
    stream.finish()
    assert stream.text == text


def test_a_stop_string_may_still_begin_inside_an_added_token() -> None:
    think = READER.raw.token_to_id("</think>")
    stream = Collected(READER, stop=[">\n\nNo"])
    assert stream.push([think, *READER.encode("\n\nNo")]) == "</think"
    assert stream.stopped == ">\n\nNo"


@pytest.mark.parametrize("skip", [True, False])
def test_a_skipped_token_is_no_stop_string(skip: bool) -> None:
    stream = Collected(READER, stop=["<|im_end|>"], skip_special_tokens=skip)
    end = READER.raw.token_to_id("<|im_end|>")
    assert stream.push([*READER.encode("a"), end, *READER.encode("b")]) == ("ab" if skip else "a")


@pytest.mark.parametrize("name", ["llama", "wordpiece", "trained"])
def test_other_vocabularies_stop_too(name: str) -> None:
    reader = tokenizer(name)
    words = ("▁the", "▁cat", "s", "▁the") if name == "llama" else ("the", "cat", "##s", "the")
    ids = (
        reader.encode("the cats the")
        if name == "trained"
        else [reader.raw.token_to_id(word) for word in words]
    )
    stream = Collected(reader, stop=["ts t"])
    assert "".join([stream.push([token]) for token in ids]) == "the ca"
    assert stream.stopped == "ts t"


@pytest.mark.parametrize(
    ("stop", "part"),
    [
        ("", "empty"),
        (["a", ""], r"stop\[1\]"),
        (["\ud83d"], "lone surrogate"),
        ([3], "must be text"),
        ([b"x"], "must be text"),
    ],
)
def test_wrong_stop_strings_are_refused(stop: object, part: str) -> None:
    with pytest.raises(UserError, match=part):
        Collected(READER, stop=stop)


@pytest.mark.parametrize("length", [10, 5_000])
def test_answers_with_the_same_stop_strings_share_what_finds_them(length: int) -> None:
    """It takes some 250 bytes a character, and a request may have 128 answers."""
    first = stop_strings(["x" * length, "end"])
    assert stop_strings(("x" * length, "end")) is first
    assert stop_strings(["x" * length, "End"]) is not first


def test_what_finds_long_stop_strings_goes_with_the_last_answer() -> None:
    found = stop_strings("x" * 5_000)
    assert found is not None
    gone = weakref.ref(found)
    del found
    gc.collect()
    assert gone() is None


def test_no_stop_is_spelled_in_several_ways() -> None:
    for stop in (None, (), []):
        stream = Collected(READER, stop=stop)
        assert stream.push(READER.encode("abc")) == "abc"


@pytest.mark.speed
def test_speed_of_detokenizing() -> None:
    took = measure_detokenizing()
    print(f"\n{took:.2f} microseconds a token with {len(STOPS)} stop strings")
    assert took < 4
