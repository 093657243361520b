"""Feeds requests to the engine as fast as it takes them, and writes answers as they come."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from core.errors import EngineDead
from plugins.serve.batch.answers import Answers
from plugins.serve.batch.offline import post
from plugins.serve.batch.requests import Request
from plugins.serve.protocol.errors import ApiError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from plugins.serve.engine.client import EngineClient

encode = msgspec.json.encode


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Body(msgspec.Struct):
    usage: _Usage | None = None


@dataclass
class Counts:
    """What became of the requests of this run."""

    well: int = 0
    failed: int = 0


async def run(
    app: ASGIApp,
    client: EngineClient,
    requests: Iterator[Request],
    answers: Answers,
    *,
    at_once: int,
    counts: Counts,
    progress: Callable[[int], None],
) -> None:
    """Answer all requests, `at_once` at a time; no more of the file than these is in memory.

    `progress` hears the tokens of each answer. EngineDead when the engine ends: whatever had no
    answer then has no line. UserError when the answers cannot be written.
    """

    async def one_after_another() -> None:
        for request in requests:
            status, body = await _answer(app, request)
            if status == 503 and not client.alive:
                await client.statistics()  # says why, by raising EngineDead
                raise EngineDead("the engine is gone.")
            answers.append(line(request.custom_id, status, body))
            tokens = 0
            if status == 200:
                counts.well += 1
                usage = msgspec.json.decode(body, type=_Body).usage
                tokens = usage.completion_tokens if usage else 0
            else:
                counts.failed += 1
            progress(tokens)

    tasks = [asyncio.ensure_future(one_after_another()) for _ in range(at_once)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _answer(app: ASGIApp, request: Request) -> tuple[int, bytes]:
    try:
        path, body = request.target()
    except ApiError as error:
        return error.status, error.body()
    return await post(app, path, body)


def line(custom_id: str, status: int, body: bytes) -> bytes:
    """A line of the file of answers. The body of one that failed is OpenAI's error object."""
    name = uuid.uuid4().hex
    return b'{"id":"batch_req_%s","custom_id":%s,"response":%s,"error":null}\n' % (
        name.encode(),
        encode(custom_id),
        b'{"status_code":%d,"request_id":"%s","body":%s}' % (status, name.encode(), body),
    )
