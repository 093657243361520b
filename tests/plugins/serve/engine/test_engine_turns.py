"""Streams with a backlog take turns, and a new request does not wait for them."""

from __future__ import annotations

import asyncio

from plugins.serve.engine.messages import Piece
from plugins.serve.engine.submission import Submission
from plugins.serve.engine.turns import AT_ONCE, Turns

STREAMS, PIECES, MOST = 40, 60, 10


def streams(turns: Turns, count: int) -> list[Submission]:
    return [Submission(number, 1, lambda *_: None, turns) for number in range(count)]


async def follow(submission: Submission, taken: list[int]) -> None:
    while pieces := await submission.take(MOST):
        taken += [submission.number] * len(pieces)


async def behind(taken: list[int]) -> tuple[Turns, list[asyncio.Task[None]]]:
    """Streams that are being followed, each with many pieces and no end."""
    turns = Turns()
    followed = streams(turns, STREAMS)
    tasks = [asyncio.create_task(follow(submission, taken)) for submission in followed]
    await asyncio.sleep(0)
    for submission in followed:
        for _ in range(PIECES):
            submission.deliver(Piece(0, [1]))
    return turns, tasks


async def end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_nobody_is_behind_another_by_more_than_a_turn() -> None:
    async def run() -> None:
        taken: list[int] = []
        _, tasks = await behind(taken)
        while len(taken) < STREAMS * PIECES:
            await asyncio.sleep(0)
            counts = [taken.count(number) for number in range(STREAMS)]
            assert max(counts) - min(counts) <= 2 * MOST
        await end(tasks)

    asyncio.run(asyncio.wait_for(run(), 20))


def test_a_round_of_the_loop_has_few_turns() -> None:
    async def run() -> None:
        taken: list[int] = []
        _, tasks = await behind(taken)
        await asyncio.sleep(0)  # all of them get their first pieces at once
        while len(taken) < STREAMS * PIECES:
            before = len(taken)
            await asyncio.sleep(0)
            assert len(taken) - before <= AT_ONCE * MOST
        await end(tasks)

    asyncio.run(asyncio.wait_for(run(), 20))


def test_a_first_piece_does_not_stand_in_line() -> None:
    async def run() -> None:
        taken: list[int] = []
        turns, tasks = await behind(taken)
        await asyncio.sleep(0)
        fresh = Submission(STREAMS, 1, lambda *_: None, turns)
        tasks.append(asyncio.create_task(follow(fresh, taken)))
        await asyncio.sleep(0)
        fresh.deliver(Piece(0, [1]))
        before = len(taken)
        while fresh.number not in taken:
            await asyncio.sleep(0)
        assert taken.index(fresh.number) - before <= 2 * AT_ONCE * MOST
        assert len(taken) < STREAMS * PIECES
        await end(tasks)

    asyncio.run(asyncio.wait_for(run(), 20))


def test_one_that_ends_in_line_is_told_so() -> None:
    async def run() -> None:
        turns = Turns()
        (first,) = streams(turns, 1)
        got: list[list[int]] = []

        async def three() -> None:
            got.append([i for piece in await first.take(1) for i in piece.ids])
            got.append([i for piece in await first.take(9) for i in piece.ids])
            got.append([i for piece in await first.take(9) for i in piece.ids])

        task = asyncio.create_task(three())
        for _ in range(3 * AT_ONCE):
            turns.enter(lambda: None)
        for token in (1, 2, 3):
            first.deliver(Piece(0, [token]))
        await asyncio.sleep(0)
        first.deliver(Piece(0, [4], finish="length"))
        await asyncio.sleep(0)
        assert got == [[1]]
        await task
        assert got == [[1], [2, 3, 4], []]

    asyncio.run(asyncio.wait_for(run(), 20))


def test_a_cancelled_one_need_not_wait_for_its_turn() -> None:
    async def run() -> None:
        taken: list[int] = []
        turns, tasks = await behind(taken)
        submission = Submission(STREAMS, 1, lambda *_: None, turns)
        task = asyncio.create_task(follow(submission, taken))
        submission.deliver(Piece(0, [1]))
        submission.deliver(Piece(0, [2]))
        await asyncio.sleep(0)
        submission.cancel()
        await task
        assert len(taken) < STREAMS * PIECES
        await end(tasks)

    asyncio.run(asyncio.wait_for(run(), 20))
