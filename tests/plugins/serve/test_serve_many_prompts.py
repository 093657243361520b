"""Requests of many prompts, or of large lists, do not keep the event loop from other clients."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from core.sampling.params import SamplingParams
from plugins.serve.batch.offline import post
from plugins.serve.endpoints import completions
from plugins.serve.endpoints.completion_writer import CompletionWriter
from tests.plugins.serve.fake_engine import FakeEngine
from tests.plugins.serve.running import Running

TEXT = "/v1/completions"
Spy = Callable[..., None]


@contextmanager
def spied(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, spy: Spy) -> Iterator[None]:
    """Every call of a method is told to `spy` first."""
    method = getattr(owner, name)

    def called(*given: Any, **named: Any) -> Any:
        spy(*given, **named)
        return method(*given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, called)
        yield


def asked(fake: Running, body: dict[str, Any]) -> tuple[int, dict[str, Any], int]:
    """Ask the application on an event loop of this thread. -> status, body, turns of the loop."""

    async def ask() -> tuple[int, bytes]:
        ticking = asyncio.create_task(tick())
        try:
            return await post(fake.app, TEXT, json.dumps(body).encode())
        finally:
            ticking.cancel()

    async def tick() -> None:
        while True:
            TURNS[0] += 1
            await asyncio.sleep(0)

    status, found = asyncio.run(ask())
    return status, json.loads(found), TURNS[0]


TURNS = [0]


@pytest.mark.parametrize("what", ["encoded", "decoded", "written", "submitted"])
def test_others_have_their_turns_between_many_prompts(
    fake: Running, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    owner, name = {
        "encoded": (fake.app.state.serving.prompts.tokenizer, "encode"),
        "decoded": (fake.app.state.serving.prompts.tokenizer, "decode"),
        "written": (CompletionWriter, "__init__"),
        "submitted": (FakeEngine, "submit"),
    }[what]
    at: list[int] = []
    prompt = [[97], [98], [99]] * 4 if what == "decoded" else ["a", "b", "c"] * 4
    with spied(monkeypatch, owner, name, lambda *given, **named: at.append(TURNS[0])):
        status, found, _ = asked(
            fake, {"prompt": prompt, "echo": what == "decoded", "temperature": 0, "max_tokens": 1}
        )
    assert (status, len(found["choices"])) == (200, 12)
    assert len(set(at)) >= 12


@pytest.mark.parametrize("full", [True, False])
def test_nothing_is_made_for_answers_that_cannot_wait(
    fake: Running, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    fake.engine.busy = 2.0 if full else None
    tokenizer = fake.app.state.serving.prompts.tokenizer
    n = 1 if full else 128  # more than can ever wait

    def never(*given: Any, **named: Any) -> None:
        pytest.fail("work was done for it")

    with (
        spied(monkeypatch, tokenizer, "encode", never),
        spied(monkeypatch, completions, "CompletionWriter", never),
    ):
        status, found, _ = asked(fake, {"prompt": ["a"] * 1024, "n": n})
    assert status == (429 if full else 400)
    if not full:
        assert "asks for 131072 answers" in found["error"]["message"]
        assert "Split it." in found["error"]["message"]
    assert not fake.engine.asked


@pytest.mark.parametrize(
    "fields",
    [
        {"stop_token_ids": [1] * 2000},
        {"allowed_token_ids": [1] * 300_000},
        {"stop": ["x"] * 2000},
        {"bad_words": ["x" * 2000]},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_long_lists_are_refused_before_each_entry_is_looked_at(
    fake: Running, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    with spied(monkeypatch, SamplingParams, "__post_init__", lambda *given: pytest.fail("made")):
        status, found, _ = asked(fake, {"prompt": "a"} | fields)
    assert (status, found["error"]["param"]) == (400, next(iter(fields)))


def test_far_too_long_a_chat_names_its_field(fake: Running) -> None:
    messages = [{"role": "user", "content": "a" * 3_000_000}]
    answer = fake.post("/v1/chat/completions", {"messages": messages})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (
        400,
        "context_length_exceeded",
        "messages",
    )


def test_a_prompt_of_ids_that_is_too_long_is_not_decoded(
    fake: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = fake.app.state.serving.prompts.tokenizer
    with spied(monkeypatch, tokenizer, "decode", lambda *given, **named: pytest.fail("decoded")):
        status, found, _ = asked(fake, {"prompt": [1] * 300, "echo": True})
    assert (status, found["error"]["code"]) == (400, "context_length_exceeded")


def test_ids_to_detokenize_are_bounded(fake: Running) -> None:
    assert fake.post("/detokenize", {"tokens": [97] * 8 * 256}).status_code == 200
    refused = fake.post("/detokenize", {"tokens": [97] * (8 * 256 + 1)})
    assert refused.status_code == 400
    assert "2049 ids: at most 2048" in refused.json()["error"]["message"]


@pytest.mark.parametrize("path", [TEXT, "/v1/chat/completions"])
@pytest.mark.parametrize("scored", [True, False])
def test_large_answers_are_written_beside_the_loop(
    fake: Running, monkeypatch: pytest.MonkeyPatch, path: str, scored: bool
) -> None:
    """With log probabilities one of them may take seconds."""
    from plugins.serve.endpoints.chat_writer import ChatWriter

    threads: set[int] = set()
    loops: set[int] = set()
    chat = path.endswith("chat/completions")
    writer = ChatWriter if chat else CompletionWriter
    body: dict[str, Any] = {"n": 2, "temperature": 1}
    body |= {"messages": [{"role": "user", "content": "Hi"}]} if chat else {"prompt": "a"}
    body |= {"logprobs": True if chat else 1} if scored else {}
    with (
        spied(monkeypatch, writer, "whole", lambda _: threads.add(threading.get_ident())),
        spied(monkeypatch, writer, "take", lambda *_: loops.add(threading.get_ident())),
    ):
        assert fake.post(path, body).status_code == 200
    assert threads
    assert (threads != loops) == scored
