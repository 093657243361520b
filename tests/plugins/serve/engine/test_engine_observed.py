"""What observers see stays in the engine's process: who asks for it over HTTP is told so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from plugins.serve.app import Serve
from plugins.serve.batch.offline import post
from plugins.serve.engine.client import EngineClient, Refused
from plugins.serve.http import build
from tests.plugins.serve.engine.started import (
    PROMPT,
    Started,
    answer,
    configuration,
    ids_of,
    params,
)

STRANGER = """
from core.hooks import hookimpl
from core.interfaces import Observer


class Norms(Observer):
    name = "norms"
    extra_args = ("norms",)

    def observe(self, step, batch, watched):
        raise AssertionError("it looks")

    def take(self, request, start, seen):
        raise AssertionError("it takes")

    def finish(self, request):
        return {"norms": 1}


@hookimpl
def observers(config, setup):
    return Norms()
"""


@pytest.fixture(scope="module")
def observed(tiny_served: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    file = tmp_path_factory.mktemp("observed") / "norms.py"
    file.write_text(STRANGER)
    config = configuration(tiny_served, plugins=["observers", str(file)])
    with closing(Started(config)) as started:
        yield started


@pytest.mark.parametrize(
    "wish",
    [{"hidden_states": [0]}, {"attentions": "all"}, {"norms": True}, {"norms": 1, "other": 2}],
    ids=str,
)
def test_who_asks_is_refused_before_anything_is_computed(
    observed: Started, wish: dict[str, Any]
) -> None:
    async def ask(client: EngineClient) -> list[str]:
        before = await client.statistics()
        with pytest.raises(Refused) as refused:
            await answer(client, PROMPT, params(extra_args=wish))
        assert await client.statistics() == before
        return refused.value.sentences

    (sentence,) = observed.run(ask)

    assert sentence.startswith("extra_args: ")
    assert next(iter(wish)) in sentence
    assert "other" not in sentence


@pytest.mark.parametrize("extra", [None, {}, {"hidden_states": None}, {"other": 1}], ids=str)
def test_others_are_answered(observed: Started, extra: Any) -> None:
    (pieces,) = observed.run(lambda client: answer(client, PROMPT, params(extra_args=extra)))

    assert len(ids_of(pieces)) == 12


def test_it_is_a_mistake_of_the_request_over_http_and_in_a_batch(observed: Started) -> None:
    async def ask(client: EngineClient) -> tuple[int, bytes]:
        app = build(client._config, client, Serve.Options())
        body = {"prompt": "a", "max_tokens": 2, "extra_args": {"attentions": [0]}}
        try:
            return await post(app, "/v1/completions", msgspec.json.encode(body))
        finally:
            app.state.serving.prompts.close()

    status, body = observed.run(ask)

    error = msgspec.json.decode(body)["error"]
    assert (status, error["param"]) == (400, "extra_args")
    assert "attentions" in error["message"]
