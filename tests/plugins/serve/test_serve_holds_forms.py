"""Whether a server relies on forms: where a processor for them is registered, with its packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.plugins import load
from core.settings import load as settings
from plugins.serve.app import Serve
from plugins.serve.http import build
from tests.plugins.serve.fake_engine import FakeEngine

PLUGIN = """
from core.interfaces import LogitsProcessor
from core.registry import processors


class Form(LogitsProcessor):
    only_asked = True

    def wants(self, params):
        return params.structured_outputs is not None

    def __call__(self, logits, rows):
        return logits


processors.register("form", Form)
processors.register("absent", Form, needs=("no_such_package",))
"""
BROKEN = """
from core.registry import processors

processors.register("guided", "no_such_module:Guided")
"""


@pytest.mark.parametrize(
    ("words", "plugins", "held"),
    [
        (["sampler.structured=form"], [], True),
        (["sampler.structured={use: form}"], [], True),
        (["sampler.structured=absent"], [], False),
        (["sampler.structured=null"], [], False),
        ([], ["no:guided"], False),
        # each request is told what is wrong with it, not answered in any form
        ([], ["no:guided", "./broken.py"], True),
    ],
)
def test_a_server_relies_on_forms_where_they_can_be_asked_for(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    plugins: list[str],
    held: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("forms.py").write_text(PLUGIN)
    Path("broken.py").write_text(BROKEN)
    given = [f"model.path={folder}", "model.device=cpu", *words]
    config = settings(None, given, plugins=["./forms.py", *plugins])
    app = build(config, FakeEngine(), Serve.Options())  # type: ignore[arg-type]
    try:
        assert app.state.serving.holds_forms == held
    finally:
        app.state.serving.prompts.close()
        load()
