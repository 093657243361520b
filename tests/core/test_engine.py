"""The engine's promises to a caller: answers end as asked, faults stay with whom they belong to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from core import LLM, SamplingParams, UserError
from core.worker import prompts
from tests.tiny import IM_END, greedy, save_tiny, tiny_model

PROMPT = list(b"The wind")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"), eos=[IM_END])


@pytest.fixture(scope="module")
def llm(checkpoint: Path, device: str):
    with LLM(
        checkpoint,
        device=device,
        dtype="float32",
        max_num_seqs=8,
        cache={"page_size": 4, "pages": 64, "check": True},
    ) as made:
        yield made
        free = made.engine.statistics()
        assert free["pages_owned"] == 0
        assert free["running"] == free["waiting"] == 0


def plain(**changes) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 12, "ignore_eos": True} | changes)


def answer(llm: LLM, params: SamplingParams, prompt=PROMPT):
    (output,) = llm.generate(prompt, params, use_tqdm=False)
    return output.outputs[0]


def test_an_answer_ends_at_max_tokens(llm):
    found = answer(llm, plain(max_tokens=5))
    assert (len(found.token_ids), found.finish_reason, found.stop_reason) == (5, "length", None)


def test_an_answer_ends_at_the_longest_length(llm):
    prompt = PROMPT * 31  # 248 of 256
    found = answer(llm, plain(max_tokens=None), prompt)
    assert (len(found.token_ids), found.finish_reason) == (8, "length")


def test_a_stop_id_ends_the_answer_and_is_not_in_its_text(llm):
    whole = answer(llm, plain())
    at = 4
    stop = whole.token_ids[at]
    first = whole.token_ids.index(stop)
    found = answer(llm, plain(stop_token_ids=[stop]))
    assert found.token_ids == whole.token_ids[: first + 1]
    assert (found.finish_reason, found.stop_reason) == ("stop", stop)
    assert found.text == llm.get_tokenizer().decode(whole.token_ids[:first])


def test_end_ids_of_the_model_end_unless_ignored(llm, monkeypatch):
    whole = answer(llm, plain())
    end = whole.token_ids[3]
    monkeypatch.setattr(llm.engine, "eos_ids", frozenset({end}))
    found = answer(llm, plain(ignore_eos=False))
    assert found.token_ids == whole.token_ids[: whole.token_ids.index(end) + 1]
    assert (found.finish_reason, found.stop_reason) == ("stop", None)
    assert answer(llm, plain(ignore_eos=True)).token_ids == whole.token_ids


def test_a_stop_string_across_tokens_ends_the_answer(llm):
    whole = answer(llm, plain(max_tokens=40))
    stop = whole.text[5:8]
    found = answer(llm, plain(max_tokens=40, stop=stop))
    assert found.text == whole.text[: whole.text.index(stop)]
    assert (found.finish_reason, found.stop_reason) == ("stop", stop)
    kept = answer(llm, plain(max_tokens=40, stop=[stop], include_stop_str_in_output=True))
    assert kept.text == whole.text[: whole.text.index(stop) + len(stop)]


def test_a_stream_never_shows_what_it_takes_back(llm):
    whole = answer(llm, plain(max_tokens=40))
    stop = whole.text[9:12]
    seen = ""
    for output in llm.stream(PROMPT, plain(max_tokens=40, stop=stop)):
        piece = output.outputs[0]
        seen += piece.delta
        assert piece.text == seen
    assert seen == whole.text[: whole.text.index(stop)]
    assert output.finished


def test_what_a_stream_yields_does_not_change_afterwards(llm):
    seen = list(llm.stream(PROMPT, plain(max_tokens=4, logprobs=1, prompt_logprobs=1)))
    assert [len(o.outputs[0].token_ids) for o in seen] == [1, 2, 3, 4]
    assert [len(o.outputs[0].logprobs) for o in seen] == [1, 2, 3, 4]
    assert len({o.metrics.last_token_time for o in seen}) == 4
    assert [o.metrics.finished_time is None for o in seen] == [True, True, True, False]
    seen[0].prompt_logprobs.clear()
    assert len(seen[1].prompt_logprobs) == len(PROMPT)


def test_a_stream_that_is_closed_early_is_aborted(llm):
    stream = llm.stream(PROMPT, plain(max_tokens=200))
    next(stream)
    assert llm.engine.statistics()["running"] == 1
    stream.close()
    assert llm.engine.statistics()["running"] == 0


def test_n_answers_share_the_prompt_and_differ(llm):
    params = SamplingParams(n=3, temperature=1.5, seed=7, max_tokens=12, ignore_eos=True)
    (output,) = llm.generate(PROMPT, params, use_tqdm=False)
    texts = {tuple(one.token_ids) for one in output.outputs}
    assert [one.index for one in output.outputs] == [0, 1, 2]
    assert len(texts) == 3


def test_seeds_decide_and_neighbours_do_not(llm):
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=10, ignore_eos=True)
    alone = answer(llm, params).token_ids
    others = [SamplingParams(temperature=2.0, max_tokens=9, ignore_eos=True)] * 5
    crowd = llm.generate([list(b"other")] * 5 + [PROMPT], [*others, params], use_tqdm=False)
    assert crowd[-1].outputs[0].token_ids == alone
    assert (
        answer(llm, plain(temperature=1.0)).token_ids
        != answer(llm, plain(temperature=1.0)).token_ids
    )


def test_logprobs_are_those_of_transformers(llm):
    found = answer(llm, plain(max_tokens=6, logprobs=3))
    reference = tiny_model()
    ids = PROMPT + found.token_ids
    exact = reference(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    for step, (token, listed) in enumerate(zip(found.token_ids, found.logprobs, strict=True)):
        row = exact[len(PROMPT) + step - 1]
        assert set(listed) == {token, *row.topk(3).indices.tolist()}
        for other, entry in listed.items():
            assert entry.logprob == pytest.approx(float(row[other]), abs=1e-4)
        assert listed[token].rank == 1
    assert found.cumulative_logprob == pytest.approx(
        sum(listed[t].logprob for t, listed in zip(found.token_ids, found.logprobs, strict=True))
    )


@pytest.mark.parametrize("part", [1, 3])
def test_logits_of_prompts_are_made_in_parts(llm, monkeypatch, part):
    (whole,) = llm.generate(PROMPT, plain(prompt_logprobs=2), use_tqdm=False)
    sizes = []
    worker = llm.engine.executor._worker
    logits = worker.model.logits

    def noted(hidden):
        sizes.append(len(hidden))
        return logits(hidden)

    monkeypatch.setattr(prompts, "PART", part)
    monkeypatch.setattr(worker.model, "logits", noted)
    llm.reset_prefix_cache()
    (found,) = llm.generate(PROMPT, plain(prompt_logprobs=2), use_tqdm=False)
    for mine, other in zip(found.prompt_logprobs[1:], whole.prompt_logprobs[1:], strict=True):
        assert mine.keys() == other.keys()
        assert [x.logprob for x in mine.values()] == pytest.approx(
            [x.logprob for x in other.values()], abs=1e-4
        )
    assert max(sizes) <= part


@pytest.mark.parametrize("budget", [3, 64])
def test_prompt_logprobs_survive_chunks(checkpoint, device, budget):
    with LLM(checkpoint, device=device, dtype="float32", max_num_batched_tokens=budget) as llm:
        params = plain(max_tokens=1, prompt_logprobs=0)
        llm.generate(PROMPT, params, use_tqdm=False)
        (output,) = llm.generate(PROMPT, params, use_tqdm=False)
    exact = tiny_model()(torch.tensor([PROMPT])).logits[0].double().log_softmax(-1)
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(PROMPT)
    for at in range(1, len(PROMPT)):
        entry = output.prompt_logprobs[at][PROMPT[at]]
        assert entry.logprob == pytest.approx(float(exact[at - 1, PROMPT[at]]), abs=1e-4)


@pytest.mark.parametrize(
    ("prompt", "params", "words"),
    [
        ([], {}, "the prompt is empty"),
        ([5, 301], {}, "token 1 of the prompt is 301"),
        ([5, -1], {}, "token 1 of the prompt is -1"),
        ([5, 2.0], {}, "token 1 of the prompt is 2.0"),
        ([5] * 256, {}, "has 256 tokens"),
        (PROMPT, {"logit_bias": {999: 1.0}}, "logit_bias"),
        (PROMPT, {"stop_token_ids": [301]}, "stop_token_ids"),
    ],
)
def test_a_bad_request_is_refused_and_the_engine_lives_on(llm, prompt, params, words):
    with pytest.raises(UserError, match="prompt 1: .*" + words):
        llm.generate([PROMPT, prompt], [plain(), plain(**params)], use_tqdm=False)
    assert answer(llm, plain()).token_ids == greedy(tiny_model(), [PROMPT], 12)[0]


def break_step(llm: LLM, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The step of this number from now on, counted from 1, fails."""
    worker = llm.engine.executor._worker
    original, calls = worker.forward, []

    def forward(batch):
        calls.append(batch)
        if len(calls) == number:
            raise ValueError("a kernel broke")
        return original(batch)

    monkeypatch.setattr(worker, "forward", forward)


def test_a_step_that_fails_ends_its_requests_alone(llm, monkeypatch):
    expected = answer(llm, plain()).token_ids
    break_step(llm, monkeypatch, 4)
    found = answer(llm, plain())
    assert found.finish_reason == "error"
    assert "a kernel broke" in found.error
    monkeypatch.undo()
    assert answer(llm, plain()).token_ids == expected


def test_answers_that_a_failed_step_ends_keep_their_text(llm, monkeypatch):
    break_step(llm, monkeypatch, 6)
    (found,) = llm.generate(PROMPT, plain(n=3, temperature=1), use_tqdm=False)
    reader = llm.get_tokenizer()
    for one in found.outputs:
        assert one.finish_reason == "error"
        assert len(one.token_ids) > 0
        assert one.text == reader.decode(one.token_ids)


@pytest.mark.parametrize("salt", [5, b"x", "\ud800"])
def test_a_salt_that_is_no_text_is_refused_before_it_is_queued(llm, salt):
    with pytest.raises(UserError, match="cache_salt "):
        llm.engine.add(PROMPT, plain(), salt=salt)
    with pytest.raises(UserError, match="cache_salt "):
        llm.generate({"prompt": "The wind", "cache_salt": salt}, plain(), use_tqdm=False)
    assert answer(llm, plain()).finish_reason == "length"


def test_abort_returns_what_there_is(llm):
    id = llm.engine.add(PROMPT, plain(max_tokens=100))
    for _ in range(4):
        llm.engine.step()
    output = llm.engine.abort(id)
    assert output.outputs[0].finish_reason == "abort"
    assert 0 < len(output.outputs[0].token_ids) < 100
    assert llm.engine.abort(id) is None


def test_a_taken_id_is_refused(llm):
    llm.engine.add(PROMPT, plain(), id="mine")
    with pytest.raises(UserError, match="'mine' is still running"):
        llm.engine.add(PROMPT, plain(), id="mine")
    llm.engine.abort("mine")


def test_a_checkpoint_without_tokenizer_takes_ids(tmp_path, device):
    path = save_tiny(tmp_path, tokenizer=False)
    with LLM(path, device=device) as llm:
        assert answer(llm, plain(max_tokens=3)).text == ""
        with pytest.raises(UserError, match="holds no tokenizer"):
            llm.generate("text", use_tqdm=False)
        with pytest.raises(UserError, match="stop strings need a tokenizer"):
            answer(llm, plain(stop="x"))
