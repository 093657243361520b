"""Text streamed chunk by chunk is the text of all ids, whatever the vocabulary and the chunks."""

from __future__ import annotations

import time

import pytest
from collected import Collected
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import ALL, BYTE_LEVEL, OTHERS, raw_llama, raw_metaspace, tokenizer

from core.generation import Answer
from core.sampling.params import SamplingParams
from core.text import Tokenizer
from core.types import Request
from plugins.serve.engine.messages import Piece
from plugins.serve.text.answers import AnswerText


def chunked(ids: list[int], sizes: list[int]) -> list[list[int]]:
    chunks, begin = [], 0
    for size in [*sizes, len(ids)]:
        chunks.append(ids[begin : begin + size])
        begin += size
    return chunks


ids_of_any_kind = st.lists(st.integers(0, 1 << 20), max_size=90)
sizes = st.lists(st.integers(0, 5), max_size=60)


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("name", ALL)
@settings(max_examples=40, deadline=None)
@given(numbers=ids_of_any_kind, sizes=sizes)
def test_the_stream_is_the_text_of_all_ids(
    name: str, skip: bool, numbers: list[int], sizes: list[int]
) -> None:
    raw = ALL[name]()
    ids = [number % (raw.get_vocab_size() + 9) for number in numbers]  # nine ids have no text
    stream = Collected(tokenizer(name), skip_special_tokens=skip)
    sent = [stream.push(chunk) for chunk in chunked(ids, sizes)] + [stream.finish()]
    assert "".join(sent) == raw.decode(ids, skip_special_tokens=skip)
    assert stream.text == "".join(sent)
    assert stream.consumed == len(ids)


BYTES_AND_THE_REST = st.one_of(
    st.text(max_size=12).map(str.encode),
    st.binary(max_size=6),
    st.sampled_from([b"\xf0\x9f\x98\x80", b"\xf0\x9f", b"\xed\xa0", b"\xc0\xaf", b"\xf4\x90"]),
)


@pytest.mark.parametrize("name", ["bytes", "llama", "late_bytes"])
@settings(max_examples=60, deadline=None)
@given(parts=st.lists(BYTES_AND_THE_REST, max_size=8), sizes=sizes)
def test_bytes_that_are_nearly_text(name: str, parts: list[bytes], sizes: list[int]) -> None:
    """Ids of whole and of broken UTF-8, which random ids hardly ever spell."""
    raw, reader = ALL[name](), tokenizer(name)
    spelled = tokenizer("bytes" if name == "late_bytes" else name)  # the same ids
    one_byte = {spelled.token_bytes(i): i for i in range(259) if i not in reader.added_ids}
    ids = [one_byte[bytes([byte])] for part in parts for byte in part]
    stream = Collected(reader)
    sent = "".join([stream.push(chunk) for chunk in chunked(ids, sizes)]) + stream.finish()
    assert sent == raw.decode(ids)


def test_an_emoji_is_sent_when_its_fourth_byte_is_there() -> None:
    reader = tokenizer("bytes")
    stream = Collected(reader)
    assert [stream.push([token]) for token in reader.encode("😀!")] == ["", "", "", "😀", "!"]


def test_half_an_emoji_ends_as_one_replacement_character() -> None:
    reader = tokenizer("bytes")
    stream = Collected(reader)
    assert stream.push(reader.encode("a😀")[:3]) == "a"
    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""
    assert stream.push(reader.encode("b")) == ""


def test_half_a_surrogate_waits_and_becomes_two_replacement_characters() -> None:
    """b"\\xed\\xa0" begins nothing valid; Python's decoder alone waits for more."""
    reader = tokenizer("bytes")
    one_byte = {reader.token_bytes(token): token for token in range(256)}
    ids = [one_byte[byte] for byte in (b"\xed", b"\xa0", b"x")]
    stream = Collected(reader)
    assert stream.push(ids) == reader.raw.decode(ids) == "\ufffd\ufffdx"


def test_a_special_token_inside_a_character_is_skipped_over() -> None:
    reader = tokenizer("bytes")
    first, *rest = reader.encode("é")
    stream = Collected(reader)
    assert stream.push([first, 258, 300, *rest]) == "é"


def test_a_run_of_fallback_bytes_waits_for_its_end() -> None:
    """One bad byte turns the whole run into U+FFFD, so nothing of it can be sent before."""
    reader = tokenizer("llama")
    run = [reader.raw.token_to_id(f"<0x{byte:02X}>") for byte in "é".encode()]
    end = reader.raw.token_to_id("▁the")
    stream = Collected(reader)
    assert [stream.push([token]) for token in [*run, end]] == ["", "", "é the"]


@pytest.mark.parametrize("raw", [raw_llama(), raw_metaspace()], ids=["llama", "metaspace"])
def test_output_continues_the_prompt(raw) -> None:
    prompt = [raw.token_to_id(token) for token in ("▁the", "▁cat", "s")]
    output = [raw.token_to_id(token) for token in ("▁a", "b")]
    stream = Collected(Tokenizer(raw), prompt_ids=prompt)
    whole = raw.decode(prompt) + stream.push(output) + stream.finish()
    assert whole == raw.decode(prompt + output) == "the cats ab"
    alone = Collected(Tokenizer(raw))
    assert alone.push(output) + alone.finish() == "ab"


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("raw", [raw_llama(), raw_metaspace()], ids=["llama", "metaspace"])
def test_an_answer_continues_its_prompt(raw, live: bool) -> None:
    """Offline and in the server, which makes text in a process of its own."""
    prompt = [raw.token_to_id(token) for token in ("▁the", "▁cat", "s")]
    output = [raw.token_to_id(token) for token in ("▁a", "b")]
    params, reader = SamplingParams(), Tokenizer(raw)
    request = Request("", prompt, params, output=output, finish_reason="length")
    answer = Answer(0, request, reader, live)
    answer.take(None)
    served = AnswerText(0, prompt, params, reader, live)
    served.take(Piece(0, output, finish="length"))
    assert answer.completion().text == served.text == " ab"


def test_bytes_at_the_end_of_a_prompt_do_not_swallow_output() -> None:
    reader = tokenizer("llama")
    first, second = (reader.raw.token_to_id(f"<0x{byte:02X}>") for byte in "é".encode())
    stream = Collected(reader, prompt_ids=[reader.raw.token_to_id("▁the"), first])
    assert stream.push([second]) + stream.finish() == "\ufffd"


def test_spaces_between_added_tokens_can_be_left_out() -> None:
    reader = tokenizer("wordpiece")
    the, cat = reader.raw.token_to_id("the"), reader.raw.token_to_id("cat")
    think, end = reader.raw.token_to_id("<think>"), reader.raw.token_to_id("<|im_end|>")
    ids = [the, think, end, cat, end]
    stream = Collected(reader, skip_special_tokens=False, spaces_between_special_tokens=False)
    assert stream.push(ids) == "the <think><|im_end|> cat <|im_end|>"
    stream = Collected(reader, skip_special_tokens=False)
    assert stream.push(ids) == "the <think> <|im_end|> cat <|im_end|>"


@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_byte_level_vocabularies_take_the_quick_path(name: str) -> None:
    assert tokenizer(name).pieces(True) is not None


@pytest.mark.parametrize("name", OTHERS)
def test_other_vocabularies_do_not(name: str) -> None:
    assert tokenizer(name).pieces(True) is None


def test_a_million_tokens_take_linear_time() -> None:
    """Quadratic work would take minutes; this takes about a second."""
    reader = tokenizer("bytes")
    ids = (reader.encode("every word is a new token 😀 ") * 40_000)[:1_000_000]
    stream = Collected(reader, stop=["never\n\n", "new tokens"])
    begin = time.perf_counter()
    for token in ids:
        stream.push([token])
    stream.finish()
    assert len(stream.text.encode()) >= 999_990
    assert reader.decode(ids) == stream.text
    assert time.perf_counter() - begin < 20


def test_a_long_text_of_another_vocabulary_takes_linear_time() -> None:
    reader = tokenizer("llama")
    words = [reader.raw.token_to_id(token) for token in ("▁the", "▁cat", "s")] * 10_000
    stream = Collected(reader)
    begin = time.perf_counter()
    sent = "".join([stream.push([token]) for token in words]) + stream.finish()
    assert sent == reader.decode(words)
    assert time.perf_counter() - begin < 20
