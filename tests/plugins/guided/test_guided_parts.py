"""The parts alone: masks, vocabularies, the cache of forms, and asking ahead of time."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from llguidance.gbnf_to_lark import is_lark_syntax

from core import LLM, SamplingParams
from core.asking import Asking
from core.text import Tokenizer
from plugins.guided.form import _LARK, Form, form_of
from plugins.guided.gate import Gate
from plugins.guided.processor import forbid
from plugins.guided.vocabulary import Vocabulary, vocabulary
from tests.plugins.guided.conftest import TRAINED, start


@given(st.integers(1, 4), st.integers(1, 200), st.randoms(use_true_random=False))
def test_bits_forbid_just_their_tokens(rows: int, size: int, random: Any) -> None:
    allowed = np.array([[random.random() < 0.3 for _ in range(size)] for _ in range(rows)])
    padded = np.zeros((rows, -(-size // 32) * 32), bool)
    padded[:, :size] = allowed
    words = np.packbits(padded, axis=1, bitorder="little").view(np.int32)
    logits = torch.randn(rows, size)
    found = forbid(logits.clone(), torch.from_numpy(words.copy()))
    assert torch.equal(found, logits.masked_fill(~torch.from_numpy(allowed), -math.inf))


def test_forbidding_is_the_same_on_a_device(device: str) -> None:
    words = torch.tensor([[0x0F0F0F0F, -1], [0, 1 << 31 - 1]], dtype=torch.int32)
    logits = torch.zeros(2, 61)
    on_device = forbid(logits.clone().to(device), words.to(device)).cpu()
    assert torch.equal(on_device, forbid(logits.clone(), words))


def words(encode: Any) -> Vocabulary:
    tokens = [bytes([byte]) for byte in range(256)] + [b"<|end|>", b"ab"]
    return Vocabulary(tokens, {256}, [256], encode)


@pytest.mark.parametrize("encode", [
    lambda text: [257] * (len(text) // 2),  # the tokenizer's own tokens, where they say the same
    lambda text: list(b" " + text.encode()),  # begins every text with a blank
    lambda text: [256],  # reads a text as a special token
    lambda text: 1 / 0,
])  # fmt: skip
def test_forced_text_becomes_tokens_of_the_same_bytes(encode: Any) -> None:
    made = words(encode)
    for text in ("ab" * 3, "ab" * 400, "x", "ünï" * 200):
        assert b"".join(made.tokens[i] for i in made(text)) == text.encode()


def test_a_vocabulary_has_the_bytes_of_the_tokenizer() -> None:
    tokenizer = Tokenizer.open(TRAINED)
    made = vocabulary(tokenizer, 5000, sorted(tokenizer.eos_ids))
    assert len(made.tokens) == 5000
    assert set(range(tokenizer.vocab_size, 5000)) <= set(made.special_token_ids)
    assert tokenizer.added_ids <= set(made.special_token_ids)
    ids = tokenizer.encode("Once upon a tïme", add_special_tokens=False)
    assert b"".join(made.tokens[i] for i in ids).decode() == "Once upon a tïme"
    assert made("Once upon a tïme") == ids


def test_forms_are_equal_whichever_way_they_are_said() -> None:
    ways: list[dict[str, Any]] = [
        {"structured_outputs": {"json": {"type": "object"}}},
        {"structured_outputs": {"json": '{"type": "object"}'}},
        {"structured_outputs": {"json_object": True}},
        {"extra_args": {"guided": {"json_object": True}}},
    ]
    assert len({form_of(SamplingParams(**way)) for way in ways}) == 1


def test_the_cache_of_forms_is_bounded(byte_checkpoint: Path) -> None:
    sampler = {"use": "default", "structured": {"use": "guided", "cache": 3}}
    with start(byte_checkpoint, sampler=sampler) as llm:
        params = [
            SamplingParams(seed=n, structured_outputs={"choice": [f"text {n}"]}) for n in range(8)
        ]
        found = llm.generate(["x"] * 8, params, use_tqdm=False)
        assert [o.outputs[0].text for o in found] == [f"text {n}" for n in range(8)]
        grammars = llm.engine.sampler.chain.processors["guided"]._grammars
        assert len(grammars._read) == 3
        assert grammars is worker_grammars(llm)


def test_forms_that_took_long_to_read_are_kept_for_a_while(
    wild: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are large; what takes no time does not push out others."""
    wild.generate(["x"], SamplingParams(structured_outputs={"choice": ["a"]}), use_tqdm=False)
    grammars = worker_grammars(wild)
    grammars._read.clear()
    forms = [Form("choice", f'["text {number}"]') for number in range(7)]
    clock = iter([0.0, 0.5] * 3 + [0.0, 0.0] + [0.0, 7.0] + [0.0, 0.5] * 2)
    monkeypatch.setattr("plugins.guided.grammars.KEPT", 1.2)
    monkeypatch.setattr("plugins.guided.grammars.time.thread_time", lambda: next(clock))
    left = []
    for form in forms:
        assert grammars.start(form) is grammars.start(form)
        left.append([forms.index(kept) for kept in grammars._read])
    assert left == [[0], [0, 1], [1, 2], [1, 2, 3], [4], [5], [5, 6]]
    grammars._read.clear()


def worker_grammars(llm: LLM) -> Any:
    return llm.engine.executor._worker.sampler.chain.processors["guided"]._grammars


def test_rows_that_have_ended_are_forgotten(wild: LLM) -> None:
    params = [SamplingParams(max_tokens=20, structured_outputs={"choice": ["a", "bcd"]})] * 4
    wild.generate(["x"] * 4, params, use_tqdm=False)
    wild.generate(["x"], params[0], use_tqdm=False)
    followed = wild.engine.executor._worker.sampler.chain.processors["guided"]._followed
    assert len(followed) == 1


def test_a_form_that_reached_a_limit_with_others_is_read_anew(
    wild: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lexers learn is shared; one that is full must not end the answers that come later."""
    from plugins.guided import grammars

    form = {"regex": "[a-z]{3}(.|\n)*x.{12}|[a-z]{30}"}
    with monkeypatch.context() as patched:
        patched.setitem(grammars.LIMITS, "max_lexer_states", 100)
        params = [SamplingParams(max_tokens=12, seed=n, structured_outputs=form) for n in range(30)]
        found = wild.generate(["x"] * 30, params, use_tqdm=False)
    assert [o.outputs[0].error for o in found] == [None] * 30


def test_asking_ahead_keeps_the_step_loop_free(wild: LLM) -> None:
    form = {"regex": "[a-z]{4}-ahead"}
    plain, guided = SamplingParams(), SamplingParams(max_tokens=20, structured_outputs=form)
    asking = Asking(wild.engine.sampler)
    try:
        assert asking.start(plain) is None
        future = asking.start(guided)
        assert future is not None
        future.result(10)
        assert asking.start(guided) is None  # it is known now
        output = wild.generate(["x"], guided, use_tqdm=False)[0].outputs[0]
        assert output.text.endswith("-ahead")
    finally:
        asking.close()


def test_many_threads_may_ask_at_once(byte_checkpoint: Path) -> None:
    with start(byte_checkpoint) as llm:
        reasons: list[list[str]] = []

        def ask(number: int) -> None:
            form = {"choice": [f"{number % 5}"]} if number % 3 else {"regex": "("}
            reasons.append(llm.engine.sampler.accepts(SamplingParams(structured_outputs=form)))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(map(bool, reasons)) == [False] * 16 + [True] * 8


def test_the_engine_makes_no_grammar_of_a_form_that_the_trial_refuses(
    wild: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Making it has to be tried out, too: converting one may take long."""
    form = Form("grammar", 'root ::= "refused"')
    made: list[Form] = []
    grammar = Form.grammar
    monkeypatch.setattr(Form, "grammar", lambda form: made.append(form) or grammar(form))
    gate = Gate(5.0)
    try:
        monkeypatch.setattr(gate, "reason", lambda form, names: "too long")
        assert worker_grammars(wild).reason(form, gate) == "too long"
    finally:
        gate.close()
    assert not made


@given(st.lists(st.sampled_from(["start", "%llguidance", ":", " ", "\n", "\r", "\t", "a", "::="])))
def test_grammars_are_told_apart_as_llguidance_does(parts: list[str]) -> None:
    text = "".join(parts)
    assert bool(_LARK.search(text)) == is_lark_syntax(text)


def test_a_form_is_known_by_its_grammar() -> None:
    assert Form("regex", "a").grammar() != Form("regex", "b").grammar()
    assert '"x"' in Form("choice", '["x"]').grammar()
