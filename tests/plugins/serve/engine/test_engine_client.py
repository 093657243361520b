"""What comes of a request through an engine's process is what the engine gives by itself."""

from __future__ import annotations

import asyncio
import random

import pytest

from core import LLM, SamplingParams
from core.generation import Answer
from core.outputs import logprob_dict
from core.types import Request
from plugins.serve.engine.client import EngineClient
from tests.plugins.serve.engine.started import PROMPT, Started, answer, free, ids_of, params


def test_many_requests_at_once_are_answered_as_one_by_one(engine: Started, offline: LLM) -> None:
    chance = random.Random(0)
    prompts = [[chance.randrange(301) for _ in range(chance.randint(1, 40))] for _ in range(24)]
    each = [
        params(seed=i, max_tokens=chance.randint(1, 30), temperature=chance.choice([0.0, 0.7, 1.5]))
        for i in range(24)
    ]

    async def ask(client: EngineClient) -> list[list[int]]:
        answers = await asyncio.gather(*map(answer, [client] * 24, prompts, each))
        return [ids_of(pieces) for (pieces,) in answers]

    expected = offline.generate(prompts, each, use_tqdm=False)
    assert engine.run(ask) == [output.outputs[0].token_ids for output in expected]


def test_the_answers_to_one_prompt_are_told_apart(engine: Started, offline: LLM) -> None:
    asked = params(n=3)

    found = engine.run(lambda client: answer(client, PROMPT, asked))

    (expected,) = offline.generate([PROMPT], asked, use_tqdm=False)
    assert [ids_of(pieces) for pieces in found] == [o.token_ids for o in expected.outputs]
    assert len({tuple(ids_of(pieces)) for pieces in found}) == 3


def test_only_the_last_piece_says_why_it_ends(engine: Started) -> None:
    (pieces,) = engine.run(lambda client: answer(client, PROMPT, params()))

    assert [piece.finish for piece in pieces] == [None] * 11 + ["length"]


def test_the_id_that_ends_an_answer_is_named(engine: Started, offline: LLM) -> None:
    (free_answer,) = offline.generate([PROMPT], params(), use_tqdm=False)
    stop = free_answer.outputs[0].token_ids[5]
    asked = params(stop_token_ids=[stop])

    (pieces,) = engine.run(lambda client: answer(client, PROMPT, asked))

    (expected,) = offline.generate([PROMPT], asked, use_tqdm=False)
    assert ids_of(pieces) == expected.outputs[0].token_ids
    assert (pieces[-1].finish, pieces[-1].stop_reason) == ("stop", stop)


def test_log_probabilities_come_with_their_ids(engine: Started, offline: LLM) -> None:
    asked = params(n=2, logprobs=3)

    found = engine.run(lambda client: answer(client, PROMPT, asked))

    (expected,) = offline.generate([PROMPT], asked, use_tqdm=False)
    for pieces, output in zip(found, expected.outputs, strict=True):
        scores = [entry for piece in pieces for entry in piece.logprobs or ()]
        told = [logprob_dict(entry, offline.get_tokenizer().decode) for entry in scores]
        assert [entry.token for entry in scores] == ids_of(pieces) == output.token_ids
        assert [{k: (v.logprob, v.rank) for k, v in d.items()} for d in told] == [
            {k: (v.logprob, v.rank) for k, v in d.items()} for d in output.logprobs or ()
        ]


def test_those_of_a_long_prompt_come_whole_with_the_first_piece(
    engine: Started, offline: LLM
) -> None:
    prompt, asked = [i % 250 for i in range(150)], params(prompt_logprobs=1, n=2)

    first, second = engine.run(lambda client: answer(client, prompt, asked))

    (expected,) = offline.generate([prompt], asked, use_tqdm=False)
    for answered in (first, second):
        told = answered[0].prompt_logprobs
        assert told is not None
        assert [
            (entry.token, pytest.approx(entry.logprob, abs=1e-4), entry.rank) for entry in told
        ] == [
            (token, known[token].logprob, known[token].rank)
            for token, known in zip(prompt[1:], (expected.prompt_logprobs or [])[1:], strict=True)
            if known is not None
        ]
        assert {piece.prompt_logprobs is None for piece in answered[1:]} == {True}


def test_the_first_piece_says_what_was_cached(engine: Started) -> None:
    prompt = [77, *range(40)]
    engine.run(lambda client: answer(client, prompt, params()))

    (pieces,) = engine.run(lambda client: answer(client, prompt, params()))

    assert [piece.cached for piece in pieces] == [40] + [0] * 11


def test_text_made_of_the_pieces_is_that_of_generate(engine: Started, offline: LLM) -> None:
    """Stop strings are found by whoever makes the text; the engine is told to end the answer."""
    prompts = [[i, i + 1, i + 2] for i in range(60, 84)]
    whole = offline.generate(prompts, params(max_tokens=40), use_tqdm=False)
    stops = [output.outputs[0].text[10:12] for output in whole]

    async def say(client: EngineClient, prompt: list[int], asked: SamplingParams) -> Answer:
        request = Request("0", prompt, asked)
        made = Answer(0, request, offline.engine.tokenizer, live=True)
        async with client.submit(prompt, asked) as pieces:
            async for piece in pieces:
                request.output += piece.ids
                request.finish_reason, request.stop_reason = piece.finish, piece.stop_reason
                if (stop := made.take(piece.logprobs)) is not None:
                    request.finish_reason, request.stop_reason = "stop", stop
                    break
        return made

    for prompt, stop in zip(prompts, stops, strict=True):
        asked = params(max_tokens=40, stop=[stop])
        (expected,) = offline.generate([prompt], asked, use_tqdm=False)
        made = engine.run(lambda client, p=prompt, a=asked: say(client, p, a)).completion()
        assert (made.text, made.token_ids, made.finish_reason, made.stop_reason) == (
            expected.outputs[0].text,
            expected.outputs[0].token_ids,
            expected.outputs[0].finish_reason,
            expected.outputs[0].stop_reason,
        )
    engine.run(free)


def test_every_parameter_arrives(engine: Started, offline: LLM) -> None:
    asked = params(
        temperature=0.9, top_p=0.9, top_k=30, min_p=0.01, presence_penalty=0.5,
        frequency_penalty=0.2, repetition_penalty=1.2, min_tokens=6, logit_bias={12: 3.0, 40: -100},
        bad_words=["a b"], allowed_token_ids=list(range(200)), stop_token_ids=[17],
    )  # fmt: skip

    (pieces,) = engine.run(lambda client: answer(client, PROMPT, asked))

    (expected,) = offline.generate([PROMPT], asked, use_tqdm=False)
    assert ids_of(pieces) == expected.outputs[0].token_ids


def test_what_the_engine_is_is_told_at_its_start(engine: Started, offline: LLM) -> None:
    info, limits = engine.client.info, offline.engine.limits

    assert (info.model, info.max_length, info.vocab_size) == ("tiny", limits.max_length, 301)
    assert info.eos_ids == sorted(offline.engine.eos_ids)
    assert info.limits["max_num_seqs"] == 8
    assert info.defaults == offline.engine.setup.checkpoint.generation
