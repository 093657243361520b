"""Other wishes choose among what the form leaves; where nothing is left, the request ends."""

from __future__ import annotations

import re
from typing import Any

from core import LLM, SamplingParams
from core.outputs import CompletionOutput


def ask(llm: LLM, form: dict[str, Any], **wishes: Any) -> CompletionOutput:
    params = SamplingParams(**{"max_tokens": 60, "seed": 4, "structured_outputs": form, **wishes})
    (output,) = llm.generate(["Well:"], params, use_tqdm=False)
    return output.outputs[0]


def letter(llm: LLM, text: str) -> int:
    (token,) = llm.engine.tokenizer.encode(text)
    return token


def test_min_tokens_keeps_it_going_where_the_form_can(wild: LLM) -> None:
    answer = ask(wild, {"regex": "[ab]+"}, min_tokens=30, logit_bias={256: 100.0})
    assert re.fullmatch("[ab]{30,}", answer.text) or answer.finish_reason == "length"
    assert len(answer.token_ids) >= 30
    assert ask(wild, {"regex": "[ab]+"}, logit_bias={256: 100.0}).text in ("a", "b")


def test_min_tokens_after_the_end_is_an_error(wild: LLM) -> None:
    answer = ask(wild, {"choice": ["no"]}, min_tokens=10)
    assert answer.finish_reason == "error"
    assert "min_tokens" in answer.error


def test_stop_strings_and_ids_end_it_early(wild: LLM) -> None:
    assert ask(wild, {"regex": "[a-z]{3}!{20}"}, stop=["!!"]).text[3:] == ""
    answer = ask(wild, {"regex": "[a-z]{3}!{20}"}, stop_token_ids=[letter(wild, "!")])
    assert (len(answer.text), answer.finish_reason) == (3, "stop")


def test_bias_bad_words_and_allowed_ids_choose_within_it(wild: LLM) -> None:
    form = {"regex": "[a-d]{5}"}
    assert ask(wild, form, logit_bias={letter(wild, "c"): 100.0}).text == "ccccc"
    assert ask(wild, form, logit_bias={letter(wild, "z"): 100.0}).text.strip("abcd") == ""
    assert ask(wild, form, bad_words=["a", "b", "c"]).text == "ddddd"
    allowed = [letter(wild, "b"), 256]
    assert ask(wild, form, allowed_token_ids=allowed).text == "bbbbb"


def test_penalties_and_truncation_leave_something(wild: LLM) -> None:
    answer = ask(
        wild, {"regex": "[a-d]{12}"}, top_k=1, top_p=0.1, min_p=0.9, repetition_penalty=2.0,
        presence_penalty=2.0, frequency_penalty=2.0,
    )  # fmt: skip
    assert re.fullmatch("[a-d]{12}", answer.text)


def test_what_cannot_go_on_ends_alone(wild: LLM) -> None:
    z = letter(wild, "z")
    params = [
        SamplingParams(max_tokens=9, seed=1, structured_outputs={"regex": "[a-d]{3}x"}),
        SamplingParams(max_tokens=9, seed=1, structured_outputs={"regex": "[a-d]{3}x"},
                       bad_words=["x"]),
        SamplingParams(max_tokens=9, seed=1, allowed_token_ids=[z, z + 1]),
    ]  # fmt: skip
    good, dead, free = (o.outputs[0] for o in wild.generate(["x"] * 3, params, use_tqdm=False))
    assert good.finish_reason == "stop"
    assert re.fullmatch("[a-d]{3}x", good.text)
    assert dead.finish_reason == "error"
    assert len(dead.token_ids) == 3
    assert "no token is possible" in dead.error
    assert len(free.token_ids) == 9


def test_log_probabilities_are_the_models_own(wild: LLM) -> None:
    answer = ask(wild, {"choice": ["q"]}, logprobs=1)
    chosen = answer.logprobs[0][letter(wild, "q")]
    assert chosen.rank >= 1
    assert chosen.logprob < 0


def test_the_answer_that_overran_its_end_is_cut_there(wild: LLM) -> None:
    answer = ask(wild, {"choice": ["ab"]})
    assert answer.token_ids[-1] in wild.engine.tokenizer.eos_ids
    assert answer.text == "ab"
