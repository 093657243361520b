"""What no client should send, and the status that it gets."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

from tests.plugins.serve.load.wire import Connection, post

MAX_BODY = 200_000  # bytes; the server of a load is to have this run.max_body

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]

WRONG_BODIES: list[tuple[str, Any, int]] = [
    (TEXT, b'{"prompt": "a", ', 400),
    (TEXT, b"\xff\xfe", 400),
    (CHAT, b"[]", 400),
    (CHAT, b'{"a":' * 3000, 400),
    (TEXT, {"prompt": 3}, 400),
    (TEXT, {"prompt": "a", "n": "many"}, 400),
    (CHAT, {"messages": [{"role": "robot", "content": "x"}]}, 400),
    (TEXT, {"prompt": "a", "temperature": -1, "top_p": 7}, 400),
    (TEXT, {"prompt": "a", "max_tokens": 10**30, "stream": True}, 400),
    (TEXT, {"prompt": "a", "logit_bias": {"99999": 1}}, 400),
    (TEXT, {"prompt": "a", "stop_token_ids": [10**6], "stream": True}, 400),
    (CHAT, {"messages": HELLO, "temprature": 1}, 400),
    (TEXT, {"prompt": [1] * 1024}, 400),
    (TEXT, {"prompt": "word " * 1500, "stream": True}, 400),
    (TEXT, {"prompt": "x" * 190_000}, 400),
    (CHAT, {"messages": [{"role": "user", "content": "word " * 1500}]}, 400),
    (TEXT, {"prompt": "a", "model": "gpt-4o"}, 404),
    (CHAT, {"messages": HELLO, "model": "gpt-4o", "stream": True}, 404),
    ("/v1/nothing", {}, 404),
    (TEXT, {"prompt": "x" * (MAX_BODY + 1)}, 413),
]


def _bytes(body: Any) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


WRONG: list[tuple[bytes, int]] = [
    *((post(path, _bytes(body)), status) for path, body, status in WRONG_BODIES),
    (post(TEXT, b'{"prompt": "a"}').replace(b"application/json", b"text/plain"), 415),
    (b"DELETE /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 405),
    (b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
     b"Content-Length: 999999999999\r\n\r\n{", 413),
    (b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
     b"Transfer-Encoding: chunked\r\n\r\n" + (b"2710\r\n" + b" " * 10_000 + b"\r\n") * 21, 413),
    (b"\x16\x03\x01\x02\x00\x01\x00 hello\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\n" + b"X-Long: " + b"a" * 70_000, 431),
]  # fmt: skip
"""Whole requests that are wrong, or are as soon as so much of them has come."""

HALF = [
    b"POST /v1/comp",
    b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-",
    post(TEXT, b'{"prompt": "Once upon a time", "max_tokens": 9}')[:-20],
    post(TEXT, b'{"prompt": "Once upon a time", "max_tokens": 9}' * 2)[:-60],
    b"",
]
"""Requests that never go on."""


async def misbehave(port: int, chance: random.Random) -> str | None:
    """One of these, at random. -> what is wrong with how the server took it."""
    connection = await Connection.open(port)
    try:
        if chance.random() < 0.3:
            await connection.send(chance.choice(HALF))
            await asyncio.sleep(chance.uniform(0, 3))
            if chance.random() < 0.5:
                connection.reset()
            return None
        request, status = chance.choice(WRONG)
        try:
            await connection.send(request)
            reply = await connection.reply()
        except ConnectionError as error:
            # it need not read what it has refused, so its answer may be lost on the way
            return None if status in (413, 431) else f"{request[:200]!r}: {error}"
        if reply.status != status:
            return f"{request[:200]!r}: {reply.status} and not {status}: {reply.body[:200]!r}"
        if set(json.loads(reply.body)["error"]) != {"message", "type", "param", "code"}:
            return f"{request[:200]!r}: no error object: {reply.body[:200]!r}"
        return None
    finally:
        connection.close()
