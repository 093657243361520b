"""Plugins add paths of their own, and may serve what the server itself refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

import pytest

from core.plugins import load
from plugins.serve.engine.messages import Piece
from tests.plugins.serve.fake_engine import FakeEngine
from tests.plugins.serve.running import ROOT, Running, serving

PLUGIN = """
from starlette.responses import JSONResponse
from starlette.routing import Route

from core.hooks import hookimpl


async def embed(request):
    ids = await request.app.state.serving.prompts.encode("abc")
    return JSONResponse({"ids": ids})


@hookimpl
def routes(app, engine):
    app.router.routes.append(Route("/v1/embeddings", embed, methods=["POST"]))
    app.router.routes.append(Route("/model", lambda request: JSONResponse(engine.info.model)))
    app.router.routes.append(Route("/health", lambda request: JSONResponse("mine")))
"""


@pytest.fixture
def extended(folder: Path, tmp_path: Path) -> Iterator[Running]:
    file = tmp_path / "embeddings.py"
    file.write_text(PLUGIN)
    with serving(FakeEngine(), folder, plugins=[str(file)]) as running:
        yield running
    load()


def test_a_plugin_that_is_named_adds_paths(extended: Running) -> None:
    assert extended.http.get("/model").json() == "tiny"
    assert extended.post("/v1/embeddings", {}).json()["ids"]


def test_other_paths_are_refused_as_before(extended: Running) -> None:
    assert extended.post("/v1/responses", {}).status_code == 404
    assert extended.post("/v1/completions", {"prompt": "a"}).status_code == 200
    assert "mine" not in extended.http.get("/health").text


def test_without_it_the_path_is_refused(fake: Running) -> None:
    assert fake.http.get("/model").status_code == 404
    assert fake.post("/v1/embeddings", {}).status_code == 404


FAULTY = """
import msgspec
from starlette.responses import JSONResponse
from starlette.routing import Route

from core import SamplingParams, UserError
from core.hooks import hookimpl


class Fields(msgspec.Struct):
    size: int = 0


async def wrong(request):
    asked = await request.app.state.serving.read(request, Fields)
    raise UserError(f"size is {asked.size}, which is too much.")


async def broken(request):
    raise ValueError("of the plugin")


@hookimpl
def routes(app, engine):
    async def refused(request):
        submission = engine.submit([], SamplingParams())
        return JSONResponse([piece.ids async for piece in submission])

    for route in (wrong, broken, refused):
        app.router.routes.append(Route(f"/{route.__name__}", route, methods=["POST"]))
"""


@pytest.fixture
def faulty(folder: Path, tmp_path: Path) -> Iterator[Running]:
    file = tmp_path / "faulty.py"
    file.write_text(FAULTY)
    with serving(FakeEngine(), folder, plugins=[str(file)]) as running:
        yield running
    load()


def test_what_a_route_says_of_a_request_is_an_answer(faulty: Running) -> None:
    answer = faulty.post("/wrong", {"size": 7})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "size is 7, which is too much."
    answer = faulty.post("/wrong", {"siz": 7})
    assert answer.json()["error"] == {
        "message": "siz is not a field of this request. Did you mean size?",
        "type": "invalid_request_error",
        "param": "siz",
        "code": "invalid_value",
    }


def test_what_the_engine_says_of_a_request_is_an_answer(faulty: Running) -> None:
    answer = faulty.post("/refused", {})
    assert answer.status_code == 400
    assert "The prompt is empty" in answer.json()["error"]["message"]


def test_a_fault_of_a_route_is_told_in_the_log_with_whose_it_is(
    faulty: Running, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answer = faulty.post("/broken", {})
    assert answer.status_code == 500
    assert answer.headers["connection"] == "close"
    assert "of the plugin" not in answer.text
    file = tmp_path / "faulty.py"
    (told,) = [
        r.getMessage() for r in caplog.records if r.name == "plait" and r.levelname == "ERROR"
    ]
    assert told == (
        f"a request failed: plugin 'faulty' ({file}) failed: ValueError: of the plugin "
        f"({file}, line 20)"
    )
    assert faulty.post("/v1/completions", {"prompt": "a"}).status_code == 200


@pytest.fixture
def documented(folder: Path, tmp_path: Path) -> Iterator[Running]:
    """The example of docs/plugins.md, on an engine that repeats the prompt."""
    text = (ROOT / "docs" / "plugins.md").read_text()
    (code,) = re.findall(r"### `routes.*?```python\n(.*?)```", text, flags=re.S)
    file = tmp_path / "documented.py"
    file.write_text(code)
    with serving(FakeEngine(), folder, plugins=[str(file)]) as running:
        yield running
    load()


def test_the_documented_route_does_what_it_says(documented: Running) -> None:
    assert documented.post("/next", {"prompt": "abc", "count": 2}).json() == {"text": "ab"}
    assert documented.post("/next", {"prompt": "abc"}).json() == {"text": "a"}
    answer = documented.post("/next", {"prompt": "abc", "count": 200})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "count is above 100: ask for fewer tokens."


def test_what_the_tables_name_is_there(documented: Running) -> None:
    text = (ROOT / "docs" / "plugins.md").read_text()
    (section,) = re.findall(r"### `routes.*?\n### ", text, flags=re.S)
    state = documented.app.state
    homes = {
        "`engine`": documented.engine,
        "a piece": Piece(0, []),
        "`app.state.serving`": state.serving,
    }
    tables = re.findall(r"\| of (.*?) \|.*?\n\| --- .*?\n((?:\|.*\n)+)", section)
    assert [name for name, _ in tables] == list(homes)
    for home, rows in tables:
        for cell in re.findall(r"^\| (.*?) \|", rows, flags=re.M):
            for name in re.findall(r"`(?:await )?([a-z_.]+)", cell):
                attrgetter(name)(homes[home])
