"""The hooks: all are documented, each is either offering or acting, and who answers which."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from core import hooks, plugins
from core.deprecation import PlaitDeprecation
from core.errors import UserError
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


def test_an_implementation_gets_the_arguments_that_it_names_and_no_others(isolated, write) -> None:
    body = (
        "from core.hooks import hookimpl\nseen = []\n"
        "@hookimpl\ndef step_done(seconds, plan):\n    seen.append((plan, seconds))\n"
    )
    write("mine.py", body)
    loaded = plugins.load(["./mine.py"])
    loaded.hook.step_done(plan="plan", output="output", seconds=0.5)
    (plugin,) = loaded.found
    assert plugin.body.seen == [("plan", 0.5)]


def test_a_hook_that_gains_an_argument_does_not_disturb_older_plugins(
    isolated, write, monkeypatch
) -> None:
    @hooks.hookspec
    def step_done(plan, output, seconds, queue): ...

    monkeypatch.setattr(hooks, "step_done", step_done)
    start = "from core.hooks import hookimpl\nseen = []\n@hookimpl\n"
    write("mine_old.py", start + "def step_done(plan):\n    seen.append(plan)\n")
    write("mine_new.py", start + "def step_done(queue):\n    seen.append(queue)\n")
    loaded = plugins.load(["./mine_old.py", "./mine_new.py"])
    loaded.hook.step_done(plan="plan", output=None, seconds=0.5, queue="queue")
    assert sorted(plugin.body.seen[0] for plugin in loaded.found) == ["plan", "queue"]


def test_an_argument_that_this_plait_lacks_is_refused_by_name(isolated, write) -> None:
    body = "from core.hooks import hookimpl\n@hookimpl\ndef step_done(plan, queue):\n    pass\n"
    write("mine.py", body)
    with pytest.raises(UserError, match=r"Argument\(s\) \{'queue'\} are declared"):
        plugins.load(["./mine.py"])


@pytest.mark.parametrize(
    "form", ["async def step_done(plan):\n    pass", "def step_done(plan):\n    yield"]
)
def test_a_hook_that_nobody_would_run_is_refused(isolated, write, form: str) -> None:
    write("mine.py", f"from core.hooks import hookimpl\n@hookimpl\n{form}\n")
    with pytest.raises(UserError, match="'step_done' is a coroutine or a generator, which nobody"):
        plugins.load(["./mine.py"])


def test_an_argument_on_its_way_out_warns_whoever_names_it(
    isolated, write, monkeypatch, recwarn
) -> None:
    monkeypatch.setitem(hooks.GOING, ("step_done", "seconds"), ("99.0", "Read the clock."))
    start = "from core.hooks import hookimpl\n@hookimpl\n"
    write("mine_a.py", start + "def step_done(plan):\n    pass\n")
    plugins.load(["./mine_a.py"])
    assert [w for w in recwarn if w.category is PlaitDeprecation] == []
    path = write("mine_b.py", start + "def step_done(seconds):\n    pass\n")
    plugins.load(["./mine_b.py"])
    (told,) = [w for w in recwarn if w.category is PlaitDeprecation]
    assert str(told.message) == (
        f"plugin 'mine_b' ({path}): the seconds of step_done is deprecated and goes with "
        "Plait 99.0. Read the clock."
    )
