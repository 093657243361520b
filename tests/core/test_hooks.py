"""The hooks: all are documented, each is either offering or acting, and who answers which."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from core import hooks, plugins
from tests.thirdparty.installed import ROOT, Site

SPECS = [name for name, f in vars(hooks).items() if hasattr(f, f"{hooks.PROJECT}_spec")]


def test_every_hook_is_offering_or_acting() -> None:
    assert sorted(SPECS) == sorted(hooks.OFFERING + hooks.ACTING)


@pytest.mark.parametrize("name", SPECS)
def test_a_hook_has_a_docstring_and_a_place_in_the_guide(name: str) -> None:
    function = getattr(hooks, name)
    assert inspect.getdoc(function)
    arguments = ", ".join(inspect.signature(function).parameters)
    guide = ROOT.joinpath("docs/plugins.md").read_text()
    assert f"### `{name}({arguments})`" in guide


def test_an_installed_plugin_offers_but_does_not_act(site: Site) -> None:
    site.install("watcher")
    hook = plugins.load().hook
    assert hook.open_weights(path=Path("x")) is None
    hook.engine_started(engine="engine")
    import plait_watcher

    assert plait_watcher.seen == [Path("x")]


def test_a_named_plugin_acts(site: Site) -> None:
    site.install("watcher")
    plugins.load(["watcher"]).hook.engine_started(engine="engine")
    import plait_watcher

    assert plait_watcher.seen == ["engine"]


def test_who_is_named_is_asked_first_and_the_first_answer_counts(site: Site, write) -> None:
    site.install("watcher")
    body = "from core.hooks import hookimpl\n@hookimpl\ndef open_weights(path):\n    return {!r}\n"
    write("mine_a.py", body.format("a"))
    write("site/plait_open.py", body.format("installed"))
    site.metadata("plait-open", "1.0", {"open": "plait_open"})
    assert plugins.load().hook.open_weights(path=Path("x")) == "installed"
    assert plugins.load(["./mine_a.py"]).hook.open_weights(path=Path("x")) == "a"
    assert plugins.offer("open_weights", path=Path("x")) == "a"
