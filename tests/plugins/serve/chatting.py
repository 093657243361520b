"""Requests to `/v1/chat/completions` in tests, with answers of the published form."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from plugins.serve.protocol.chat_answers import ChatChunk, ChatCompletion
from tests.plugins.serve.running import Running

PATH = "/v1/chat/completions"
HELLO: list[Any] = [{"role": "user", "content": "Hello"}]


def whole(fake: Running, **body: Any) -> Any:
    answer = fake.post(PATH, {"messages": HELLO, **body})
    assert answer.status_code == 200, answer.text
    msgspec.json.decode(answer.content, type=ChatCompletion)  # nothing is missing or too much
    return answer.json()


def streamed(fake: Running, **body: Any) -> list[Any]:
    events = fake.events(PATH, {"messages": HELLO, **body})
    for event in events:
        msgspec.json.decode(event, type=ChatChunk)
    return [json.loads(event) for event in events]


def deltas(fake: Running, **body: Any) -> list[Any]:
    return [event["choices"][0]["delta"] for event in streamed(fake, **body)]
