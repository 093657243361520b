"""What comes back has vLLM's attributes, with vLLM's meanings."""

from __future__ import annotations

import pytest

from core import LLM, SamplingParams
from tests.acceptance.asking import GREEDY, IDS, TEXT, refusal
from tests.tiny import tiny_tokenizer


def test_an_output_has_what_vllm_s_has(llm, expected):
    params = SamplingParams(temperature=0, max_tokens=6, logprobs=2, ignore_eos=True)
    first, second = llm.generate([TEXT, IDS], params)
    assert int(second.request_id) == int(first.request_id) + 1
    assert (first.prompt, second.prompt) == (TEXT, None)
    assert first.finished
    assert first.prompt_logprobs is None
    (answer,) = first.outputs
    assert (answer.index, answer.token_ids) == (0, expected)
    assert answer.text == llm.get_tokenizer().decode(expected)
    assert (answer.finish_reason, answer.stop_reason, answer.finished()) == ("length", None, True)
    for token, position in zip(expected, answer.logprobs, strict=True):
        assert next(iter(position)) == token
        assert position[token].rank == 1
        assert len(position) == 2
    sums = sum(p[t].logprob for t, p in zip(expected, answer.logprobs, strict=True))
    assert answer.cumulative_logprob == pytest.approx(sums)


def test_without_logprobs_there_are_none(llm):
    (answer,) = llm.generate(TEXT, GREEDY)[0].outputs
    assert (answer.logprobs, answer.cumulative_logprob) == (None, None)


def test_metrics_are_in_order(llm):
    (output,) = llm.generate(TEXT, GREEDY)
    times = output.metrics
    assert times.arrival_time < times.first_token_time <= times.last_token_time
    assert times.last_token_time <= times.finished_time
    assert times.first_token_latency == times.first_token_ts - times.arrival_time
    assert times.last_token_ts == times.last_token_time


def test_samples_are_indexed_and_stops_are_named(llm, expected):
    (output,) = llm.generate(TEXT, SamplingParams(n=3, temperature=1.5, seed=1, max_tokens=4))
    assert [answer.index for answer in output.outputs] == [0, 1, 2]
    stop = SamplingParams(temperature=0, max_tokens=6, stop_token_ids=[expected[2]])
    (answer,) = llm.generate(TEXT, stop)[0].outputs
    assert (answer.finish_reason, answer.stop_reason) == ("stop", expected[2])
    whole = llm.get_tokenizer().decode(expected)
    (answer,) = llm.generate(TEXT, SamplingParams(temperature=0, stop=[whole[3]]))[0].outputs
    assert (answer.finish_reason, answer.stop_reason) == ("stop", whole[3])
    assert answer.text == whole[: whole.index(whole[3])]


def test_prompt_logprobs_belong_to_the_prompt(llm):
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=3)
    (output,) = llm.generate(TEXT, params)
    assert output.prompt_logprobs[0] is None
    for token, position in zip(IDS[1:], output.prompt_logprobs[1:], strict=True):
        assert next(iter(position)) == token
        assert len(position) in (3, 4)
        assert position[token].decoded_token == tiny_tokenizer().decode([token])


def test_priorities_decide_who_goes_first(checkpoint, device, llm):
    with LLM(checkpoint, device=device, scheduling_policy="priority", max_num_seqs=1) as made:
        outputs = made.generate([TEXT] * 3, GREEDY, priority=[2, 1, 0])
    finished = [output.metrics.finished_time for output in outputs]
    assert finished == sorted(finished, reverse=True)
    assert "priorit" in refusal(llm.generate, TEXT, GREEDY, priority=[1, 0])
    assert "the scheduler 'fcfs' does not look at priorities" in refusal(
        llm.generate, TEXT, GREEDY, priority=[1]
    )
    assert llm.generate(TEXT, GREEDY, priority=[0])
