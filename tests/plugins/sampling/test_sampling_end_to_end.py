"""Sampling in a running engine: the same tokens however requests are scheduled."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from core import LLM, SamplingParams
from tests.tiny import IM_END, save_tiny, tiny_model

PROMPTS = [[7 * i + j for j in range(3 + i)] for i in range(8)]
WISHES = [
    SamplingParams(seed=1),
    SamplingParams(temperature=3.0, top_k=40, seed=2),
    SamplingParams(temperature=4.0, top_p=0.9, frequency_penalty=1.0, seed=3),
    SamplingParams(temperature=2.0, repetition_penalty=1.3, min_p=0.01, seed=4),
    SamplingParams(temperature=0, presence_penalty=1.5),
    SamplingParams(temperature=5.0, allowed_token_ids=list(range(97, 123)), seed=5),
    SamplingParams(temperature=2.0, logit_bias={65: 5, 66: -100}, min_tokens=9, seed=6),
    SamplingParams(temperature=3.0, bad_words=["e", "ab"], seed=7),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


def engine(checkpoint: Path, device: str, *, pages: int = 64, tokens: int = 64, **more) -> LLM:
    return LLM(
        checkpoint,
        device=device,
        dtype="float32",
        cache={"page_size": 4, "pages": pages, "check": True},
        scheduler={"use": "fcfs", "max_num_seqs": 8, "max_num_batched_tokens": tokens},
        **more,
    )


def answers(llm: LLM, params: list[SamplingParams], prompts: list | None = None) -> list[list[int]]:
    outputs = llm.generate(prompts or PROMPTS[: len(params)], params, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


@pytest.fixture(scope="module")
def together(checkpoint: Path) -> list[list[int]]:
    with engine(checkpoint, "cpu") as llm:
        return answers(llm, WISHES)


def test_wishes_make_different_texts(together: list[list[int]]) -> None:
    assert len(set(map(tuple, together))) == len(WISHES)
    assert sum(len(set(ids)) > 8 for ids in together) >= 6


def test_alone_or_in_another_order(checkpoint: Path, together: list[list[int]]) -> None:
    with engine(checkpoint, "cpu") as llm:
        for s, params in enumerate(WISHES):
            assert answers(llm, [params], [PROMPTS[s]]) == [together[s]]
        assert answers(llm, WISHES[::-1], PROMPTS[::-1]) == together[::-1]


def test_chunked_and_preempted(checkpoint: Path, together: list[list[int]]) -> None:
    with engine(checkpoint, "cpu", pages=14, tokens=5) as llm:
        assert answers(llm, WISHES) == together
        assert llm.engine.statistics()["preemptions"] > 0


def test_planned_ahead(checkpoint: Path, together: list[list[int]]) -> None:
    with engine(checkpoint, "cpu", executor={"use": "local", "overlap": "on"}) as llm:
        assert answers(llm, WISHES) == together


def test_ranks_agree(checkpoint: Path, together: list[list[int]]) -> None:
    with engine(checkpoint, "cpu", tensor_parallel_size=2) as llm:
        assert answers(llm, WISHES) == together


def test_samples_of_a_prompt_differ_and_come_again_with_the_seed(checkpoint: Path) -> None:
    params = SamplingParams(n=4, temperature=3.0, seed=11)
    with engine(checkpoint, "cpu") as llm:
        first, again = (llm.generate([PROMPTS[0]], params, use_tqdm=False)[0] for _ in range(2))
        texts = [tuple(answer.token_ids) for answer in first.outputs]
        assert len(set(texts)) == 4
        assert texts == [tuple(answer.token_ids) for answer in again.outputs]
        free = SamplingParams(temperature=3.0)
        assert answers(llm, [free], [PROMPTS[0]]) != answers(llm, [free], [PROMPTS[0]])


def test_what_was_forbidden_does_not_appear(checkpoint: Path, together: list[list[int]]) -> None:
    assert all(97 <= token < 123 for token in together[5])
    assert 66 not in together[6]
    assert IM_END not in together[6][:9]


def test_bad_words_do_not_appear_in_the_text(checkpoint: Path) -> None:
    words = ["e", "ab", "cad"]
    with engine(checkpoint, "cpu") as llm:
        letters = llm.get_tokenizer().encode("abcde")

        def counts(bad_words: list[str] | None) -> list[int]:
            params = [
                SamplingParams(
                    temperature=100.0, allowed_token_ids=letters, seed=s, bad_words=bad_words
                )
                for s in range(16)
            ]
            outputs = llm.generate(PROMPTS * 2, params, use_tqdm=False)
            text = " ".join(output.outputs[0].text for output in outputs)
            return [text.count(word) for word in words]

        assert min(counts(None)) > 0
        assert counts(words) == [0, 0, 0]


def test_logprobs_are_those_of_transformers(checkpoint: Path) -> None:
    prompt = PROMPTS[3]
    params = SamplingParams(temperature=2.0, seed=5, logprobs=3, prompt_logprobs=2, max_tokens=6)
    with engine(checkpoint, "cpu") as llm:
        (output,) = llm.generate([prompt], params, use_tqdm=False)
    ids = prompt + output.outputs[0].token_ids
    with torch.inference_mode():
        wanted = tiny_model()(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    for place, found in enumerate(output.prompt_logprobs):
        if place:
            row = wanted[place - 1]
            assert set(found) == {prompt[place], *row.topk(2).indices.tolist()}
            assert found[prompt[place]].logprob == pytest.approx(
                float(row[prompt[place]]), abs=1e-3
            )
    for place, found in enumerate(output.outputs[0].logprobs, len(prompt) - 1):
        row, token = wanted[place], ids[place + 1]
        assert set(found) == {token, *row.topk(3).indices.tolist()}
        assert found[token].logprob == pytest.approx(float(row[token]), abs=1e-3)
        assert found[token].rank == 1 + int((row > row[token]).sum())


def test_a_request_without_a_possible_token_ends_alone(checkpoint: Path) -> None:
    never = SamplingParams(allowed_token_ids=[IM_END], min_tokens=3, max_tokens=9)
    with engine(checkpoint, "cpu") as llm:
        hopeless, good = llm.generate(PROMPTS[:2], [never, WISHES[1]], use_tqdm=False)
        assert hopeless.outputs[0].finish_reason == "error"
        assert "no token is possible" in hopeless.outputs[0].error
        assert len(good.outputs[0].token_ids) == 16
