"""Loading plugins: found, blocked, named, broken; and what a broken one may not do."""

from __future__ import annotations

import logging
import sys

import pytest

from core import plugins
from core.errors import UserError
from core.plugins.discovery import Plugin
from core.registry import registries
from tests.thirdparty.installed import HERE, Site


def one(name: str) -> Plugin:
    (found,) = [plugin for plugin in plugins.current() if plugin.name == name]
    return found


def refusal(*words: str, strict: bool = False) -> str:
    with pytest.raises(UserError) as caught:
        plugins.load(words, strict=strict)
    return str(caught.value)


def test_an_installed_plugin_registers_and_its_component_stays_unimported(site: Site) -> None:
    site.install("good", "1.2")
    plugins.load()
    entry = registries.samplers.entry("good")
    assert str(entry.provider) == "plugin 'good' (plait-good 1.2)"
    assert "plait_good_sampler" not in sys.modules
    assert registries.samplers.get("good").__name__ == "Good"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broken", "ModuleNotFoundError: No module named 'plait_absent'"),
        ("raising", "RuntimeError: the licence server is away"),
        ("misspelt", "'engine_startd' is marked @hookimpl, but there is no such hook. "
                     "Did you mean 'engine_started'?"),
    ],
)  # fmt: skip
def test_a_failing_plugin_is_recorded_undone_and_noted(site: Site, name: str, said: str) -> None:
    site.install("good")
    site.install(name, "0.3")
    loaded = plugins.load()
    assert registries.samplers.names() == ["good", "hungry"]
    assert registries.attention.names() == []
    assert one(name).error is not None
    (note,) = loaded.notes()
    assert note.startswith(f"note: plugin {name!r} (plait-{name} 0.3) did not load: {said}")
    with pytest.raises(UserError) as caught:
        registries.samplers.get("goood")
    assert note in str(caught.value)


def test_the_cause_gives_file_and_line(site: Site) -> None:
    site.install("broken")
    (note,) = plugins.load().notes()
    assert f"({site.folder / 'plait_broken.py'}, line 3)" in note


def test_an_exception_that_cannot_be_printed_is_a_cause_like_any_other(site: Site, write) -> None:
    site.install("broken")
    file = site.folder / "plait_broken.py"
    file.write_text(
        "class Mute(Exception):\n    def __str__(self):\n        raise OSError\n\n\nraise Mute\n"
    )
    (note,) = plugins.load().notes()
    assert note.endswith(f"did not load: Mute ({file}, line 6)")


def test_a_name_that_one_plugin_gives_twice_is_not_blamed_on_two(isolated, write) -> None:
    one = "@samplers.register('doubled')\nclass {}(Sampler):\n    def __call__(self, *_): ...\n"
    start = "from core.interfaces import Sampler\nfrom core.registry import samplers\n"
    write("mine.py", start + one.format("First") + one.format("Second"))
    plugins.load(["./mine.py"])
    with pytest.raises(UserError) as caught:
        registries.samplers.get("doubled")
    assert "registers several classes as sampler 'doubled': " in str(caught.value)
    assert str(caught.value).endswith(":Second. Give each a name of its own.")


def test_a_failing_plugin_is_logged_once_with_its_traceback(site: Site, caplog) -> None:
    site.install("raising")
    plugins.load()
    plugins.load()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "plugin 'raising' (plait-raising 0.1) did not load" in record.getMessage()
    assert "plait_raising.py" in record.getMessage()


def test_a_failing_plugin_that_is_named_is_fatal(site: Site) -> None:
    site.install("broken")
    site.install("raising")
    message = refusal("raising")
    assert "plugin 'raising' (plait-raising 0.1) did not load: RuntimeError" in message
    assert "Traceback" not in message
    assert "broken" not in message
    both = refusal("raising", "broken")
    assert "RuntimeError" in both
    assert "ModuleNotFoundError" in both


def test_strict_lets_nothing_fail_and_shows_tracebacks(site: Site) -> None:
    site.install("broken")
    message = refusal(strict=True)
    assert "plugin 'broken' (plait-broken 0.1) did not load" in message
    assert "Traceback (most recent call last)" in message


def test_a_blocked_plugin_is_not_even_imported(site: Site) -> None:
    site.install("broken")
    site.install("good")
    plugins.load(["no:broken", "no:good"])
    assert registries.samplers.names() == []
    assert registries.notes == []
    assert "plait_good" not in sys.modules
    assert one("broken").blocked


@pytest.mark.parametrize("word", ["good", "plait-good", "plait_good", "Plait.Good"])
def test_a_plugin_answers_to_its_name_its_package_and_its_module(site: Site, word: str) -> None:
    site.install("good")
    plugins.load([f"no:{word}"])
    assert one("good").blocked


def test_the_later_of_two_words_counts(site: Site) -> None:
    site.install("good")
    plugins.load(["no:good", "good"])
    assert (one("good").named, one("good").blocked) == (True, False)
    plugins.load(["good", "no:good"])
    assert (one("good").named, one("good").blocked) == (False, True)


def test_a_clash_hurts_only_whoever_uses_the_name_and_can_be_switched_off(site: Site) -> None:
    site.install("good", "1.2")
    site.install("clash", "0.9")
    plugins.load()
    assert registries.samplers.entry("hungry")
    with pytest.raises(UserError) as caught:
        registries.samplers.get("good")
    message = str(caught.value)
    assert "plugin 'clash' (plait-clash 0.9) and plugin 'good' (plait-good 1.2)" in message
    assert "-p no:clash or -p no:good" in message
    plugins.load(["no:clash"])
    assert registries.samplers.get("good").__name__ == "Good"


def test_plugins_of_one_name_both_load_and_are_told_apart_by_package(site: Site) -> None:
    site.install("good", "1.2", plugin="samplers")
    site.install("clash", "0.9", plugin="samplers")
    plugins.load()
    with pytest.raises(UserError, match="-p no:plait-clash or -p no:plait-good"):
        registries.samplers.get("good")
    plugins.load(["no:plait-clash"])
    assert registries.samplers.get("good").__name__ == "Good"


def test_loading_again_gives_the_same_and_nothing_twice(site: Site, write) -> None:
    site.install("good")
    words = [str(HERE / "one_file.py"), "good"]
    plugins.load(words)
    first = registries.samplers.entries()
    plugins.load(words)
    assert registries.samplers.entries() == first
    plugins.load([])
    assert registries.samplers.names() == ["good", "hungry"]


def test_what_the_process_registered_itself_stays(site: Site) -> None:
    site.install("good")
    registries.samplers.register("own", "somewhere:Own")
    plugins.load()
    plugins.load()
    assert registries.samplers.names() == ["good", "hungry", "own"]


def test_a_plugin_in_one_file_registers_by_decorator(site: Site, monkeypatch) -> None:
    monkeypatch.chdir(HERE.parent)
    plugins.load(["./thirdparty/one_file.py"])
    assert registries.samplers.get("shout").__name__ == "Shout"
    assert registries.samplers.entry("shout").provider.source == str(HERE / "one_file.py")
    plugins.load(["thirdparty/one_file.py", "no:one_file"])
    assert registries.samplers.names() == []


def test_a_file_with_a_syntax_error_gives_its_line(isolated, write) -> None:
    write("mine.py", "x = 1\ndef broken(:\n")
    assert "mine.py, line 2" in refusal("./mine.py")


def test_a_missing_file_names_the_nearest(isolated, write) -> None:
    path = write("mine_sampler.py", "")
    message = refusal("./mine_smapler.py")
    assert "there is no such file" in message
    assert str(path) in message
    assert "is a folder" in refusal(str(path.parent))


def test_an_unknown_name_is_refused_with_the_nearest(site: Site) -> None:
    site.install("good")
    message = refusal("goood")
    assert "no plugin is called 'goood'. Did you mean 'good'?" in message


def test_leaving_out_what_is_not_there_is_only_a_warning(site: Site, caplog) -> None:
    site.install("good")
    plugins.load(["no:goood"])
    assert "Did you mean 'good'?" in caplog.text


def test_a_module_can_be_named_without_an_entry_point(site: Site, write) -> None:
    write("site/plait_loose.py", HERE.joinpath("packages/plait_good.py").read_text())
    plugins.load(["plait_loose"])
    assert registries.samplers.names() == ["good", "hungry"]


def test_an_object_can_be_a_plugin(site: Site, write) -> None:
    write(
        "site/plait_object.py",
        "from core.hooks import hookimpl\n"
        "class Parts:\n"
        "    @hookimpl\n"
        "    def register(self, registries):\n"
        "        registries.samplers.register('held', 'a:B')\n"
        "parts = Parts()\n",
    )
    site.metadata("plait-object", "1.0", {"object": "plait_object:parts"})
    plugins.load()
    assert registries.samplers.names() == ["held"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def step_done(plan):\n    pass\n", "'step_done' has the name of a hook: mark it"),
        ("@hookimpl\ndef step_done(plans):\n    pass\n", "plans"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
        ("raise BaseException('odd')\n", "BaseException: odd"),
        (
            "@hookimpl(wrapper=True)\ndef step_done():\n    yield\n",
            "its hook 'step_done' is a wrapper around those of other plugins.",
        ),
        (
            "@hookimpl\ndef register(registries):\n    registries.samplers.register(7, 'a:B')\n",
            "a name and a summary are text",
        ),
    ],
)
def test_hooks_that_nobody_would_call_are_refused(isolated, write, body: str, said: str) -> None:
    write("mine.py", "from core.hooks import hookimpl\n" + body)
    assert said in refusal("./mine.py")


def test_an_optional_hook_may_be_unknown(isolated, write) -> None:
    write(
        "mine.py",
        "from core.hooks import hookimpl\n"
        "@hookimpl(optionalhook=True)\ndef hook_of_tomorrow():\n    pass\n",
    )
    assert plugins.load(["./mine.py"]).notes() == []
