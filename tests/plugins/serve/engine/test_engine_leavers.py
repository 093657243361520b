"""Who may ask, who is turned away, and what is left of those that leave early."""

from __future__ import annotations

import asyncio
import random

import pytest

from core import LLM, UserError
from plugins.serve.engine.client import Busy, EngineClient, Refused
from tests.plugins.serve.engine.started import PROMPT, Started, answer, free, ids_of, params


@pytest.mark.parametrize("way", ["cancel", "aclose", "with"])
def test_who_leaves_early_frees_everything(engine: Started, way: str) -> None:
    async def leave(client: EngineClient) -> tuple[int, int]:
        before = (await client.statistics())["planned_tokens"]
        submission = client.submit(PROMPT, params(n=4, max_tokens=200, ignore_eos=True))
        await submission.__anext__()
        if way == "cancel":
            submission.cancel()
        elif way == "aclose":
            await submission.aclose()
        else:
            async with submission:
                pass
        rest = [piece async for piece in submission]
        await free(client)
        return len(rest), (await client.statistics())["planned_tokens"] - before

    pieces, tokens = engine.run(leave)
    assert pieces == 0
    assert tokens < 400  # of 800


def test_one_answer_is_ended_and_the_others_go_on(engine: Started, offline: LLM) -> None:
    asked = params(n=3, max_tokens=100, ignore_eos=True)

    async def end_one(client: EngineClient) -> tuple[list[list[int]], int]:
        before = (await client.statistics())["planned_tokens"]
        found: list[list[int]] = [[], [], []]
        submission = client.submit(PROMPT, asked)
        async for piece in submission:
            found[piece.index] += piece.ids
            if len(found[1]) == 3:
                submission.cancel(1)
        await free(client)
        return found, (await client.statistics())["planned_tokens"] - before

    (first, second, third), tokens = engine.run(end_one)
    (expected,) = offline.generate([PROMPT], asked, use_tqdm=False)
    assert [first, third] == [expected.outputs[0].token_ids, expected.outputs[2].token_ids]
    assert second == expected.outputs[1].token_ids[:3]
    assert tokens < 270  # of 300


def test_those_that_stay_are_not_touched_by_those_that_leave(engine: Started, offline: LLM) -> None:
    chance = random.Random(1)
    prompts = [[chance.randrange(301) for _ in range(chance.randint(1, 30))] for _ in range(60)]
    each = [params(seed=i, n=chance.choice([1, 1, 2]), max_tokens=25) for i in range(60)]
    leaves = [chance.choice([None, None, 0, 3, 10]) for _ in range(60)]

    async def one(client: EngineClient, i: int) -> list[list[int]]:
        await asyncio.sleep(chance.random() / 5)
        while True:
            try:
                submission = client.submit(prompts[i], each[i])
                break
            except Busy:
                await asyncio.sleep(0.01)
        found: list[list[int]] = [[] for _ in range(each[i].n)]
        count = 0
        async with submission:
            while leaves[i] != count and (pieces := await submission.take(64)):
                count += 1
                for piece in pieces:
                    found[piece.index] += piece.ids
        return found

    async def ask(client: EngineClient) -> list[list[list[int]]]:
        found = await asyncio.gather(*(one(client, i) for i in range(60)))
        await free(client)
        return found

    found = engine.run(ask)
    expected = offline.generate(prompts, each, use_tqdm=False)
    for answers, output, leaves_after in zip(found, expected, leaves, strict=True):
        for ids, whole in zip(answers, output.outputs, strict=True):
            wanted = whole.token_ids
            assert ids == (wanted if leaves_after is None else wanted[: len(ids)])


def test_one_that_is_cancelled_before_it_is_read_never_runs(engine: Started) -> None:
    async def rush(client: EngineClient) -> None:
        for _ in range(20):
            client.submit(PROMPT, params(max_tokens=200)).cancel()
        await free(client)
        assert len(client._answers) == 0

    engine.run(rush)


def test_a_refusal_has_every_sentence_of_the_engine(engine: Started, offline: LLM) -> None:
    prompt, asked = [1, 300, 301] * 100, params(allowed_token_ids=[500], logprobs=400)
    with pytest.raises(UserError) as expected:
        offline.engine.admissible(prompt, asked)

    with pytest.raises(Refused) as refused:
        engine.run(lambda client: answer(client, prompt, asked))

    assert refused.value.sentences == str(expected.value).splitlines()
    assert len(refused.value.sentences) > 3


@pytest.mark.parametrize(
    ("ids", "given"),
    [
        ([2**31], {}),
        ([1.5], {}),
        (["a"], {}),
        ([], {}),
        ([-1], {}),
        (PROMPT, {"extra_args": {"x": object()}}),
        (PROMPT, {"n": 65}),
        (PROMPT, {"priority": 3}),
    ],
)
def test_what_cannot_be_run_is_refused_and_harms_nobody(
    engine: Started, ids: list[int], given: dict[str, int]
) -> None:
    named = {"priority": given["priority"]} if "priority" in given else {}
    asked = params(**{k: v for k, v in given.items() if k not in named})

    async def both(client: EngineClient) -> list[list[int]]:
        other = asyncio.ensure_future(answer(client, PROMPT, params()))
        with pytest.raises(Refused) as refused:
            await client.submit(ids, asked, **named).accepted()
        assert all(sentence.endswith(".") for sentence in refused.value.sentences)
        return [ids_of(pieces) for pieces in await other]

    assert [len(found) for found in engine.run(both)] == [12]


def test_a_request_is_accepted_before_it_has_a_token(engine: Started) -> None:
    async def ask(client: EngineClient) -> None:
        many = [client.submit(PROMPT, params(max_tokens=60, ignore_eos=True)) for _ in range(9)]
        await many[8].accepted()  # there are eight rows
        assert not many[8]._pieces
        for submission in many:
            submission.cancel()

    engine.run(ask)


def test_too_many_that_wait_are_turned_away_for_a_while(engine: Started) -> None:
    async def crowd(client: EngineClient) -> float:
        many = [client.submit(PROMPT, params(n=8, max_tokens=100)) for _ in range(8)]
        with pytest.raises(Busy) as busy:
            client.submit(PROMPT, params())
        for submission in many:
            submission.cancel()
        client.submit(PROMPT, params()).cancel()
        await free(client)
        return busy.value.retry_after

    assert 1 <= engine.run(crowd) <= 60


def test_room_is_asked_for_before_anything_is_handed_over(engine: Started) -> None:
    async def ask(client: EngineClient) -> None:
        client.check_room(64)
        with pytest.raises(Refused, match="asks for 65 answers, and no more than 64 can wait"):
            client.check_room(65)
        waiting = client.submit(PROMPT, params(n=8))
        with pytest.raises(Busy):
            client.check_room(60)
        waiting.cancel()
        await free(client)
        client.check_room(64)

    engine.run(ask)


def test_pieces_that_piled_up_are_taken_at_once(engine: Started) -> None:
    async def wait(client: EngineClient) -> list[int]:
        submission = client.submit(PROMPT, params())
        await submission.accepted()
        await free(client)
        counts = []
        while pieces := await submission.take(64):
            counts.append(len(pieces))
        return counts

    assert engine.run(wait) == [12]
