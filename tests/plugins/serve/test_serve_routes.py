"""Plugins add paths of their own, and may serve what the server itself refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from core.plugins import load
from tests.plugins.serve.fake_engine import FakeEngine
from tests.plugins.serve.running import Running, serving

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


def test_without_it_the_path_is_refused(fake: Running) -> None:
    assert fake.http.get("/model").status_code == 404
    assert fake.post("/v1/embeddings", {}).status_code == 404
