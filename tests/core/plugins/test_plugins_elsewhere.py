"""Plugins in other processes, and plugins made for other versions."""

from __future__ import annotations

import pickle
import subprocess
import sys
from types import ModuleType

import pytest

from core import __version__, plugins
from core.errors import UserError
from core.plugins.discovery import Plugin
from core.plugins.listing import show
from core.registry import registries
from tests.thirdparty.installed import HERE, Site

OWN = """
from tests.thirdparty.parts import MinP
class Own(MinP):
    class Options(MinP.Options): ...
"""


def one(name: str) -> Plugin:
    (found,) = [plugin for plugin in plugins.current() if plugin.name == name]
    return found


def test_a_plugin_for_another_version_is_known_as_such(site: Site) -> None:
    site.install("good", requires=["torch", "plait>=9.0"])
    site.install("broken", requires=["plait >=9.0 ; python_version > '3'"])
    site.install("watcher", requires=["plait>=0.1", "plait-good>=3"])
    loaded = plugins.load()
    assert one("good").misfit().startswith("made for plait >=9.0, this is ")
    assert one("watcher").misfit() == ""
    assert "made for plait >=9.0" in loaded.notes()[0]


@pytest.mark.parametrize("range", [">=9.0", "<0.1", "==0.0.*", "~=9.1"])
def test_the_listing_shows_a_range_that_does_not_fit(site: Site, range: str, capsys) -> None:
    site.install("good", "1.2", requires=[f"plait{range}"])
    site.install("watcher", requires=["plait>=0.1"])
    show(plugins.load(), registries)
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert rows["good"].split(maxsplit=3)[3].startswith("made for plait ")
    assert rows["good"].endswith(f", this is {__version__}")
    assert rows["watcher"].split(maxsplit=3)[3] == "ready"


def test_load_like_is_free_when_nothing_changed(site: Site) -> None:
    site.install("good")
    loaded = plugins.load(["good"])
    assert plugins.load_like(["good"]) is loaded
    assert plugins.load_like(["no:good"]) is not loaded


def test_a_spawned_process_unpickles_a_config_of_a_one_file_plugin(parts, site: Site) -> None:
    from core.settings import load

    words = ["model.path=x", "sampler=shout", "sampler.loud=false"]
    config = load(None, words, plugins=[str(HERE / "one_file.py")])
    path = site.folder / "config.pickle"
    path.write_bytes(pickle.dumps(config))
    # the child lacks the parts that this test registered itself; it needs only what is pickled
    code = (
        "import pickle, sys\n"
        f"config = pickle.load(open({str(path)!r}, 'rb'))\n"
        "from core.registry import samplers\n"
        "assert type(config.sampler.options) is samplers.get('shout').Options\n"
        "print(config.sampler.options.loud, config.plugins)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=site.environment()
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"False {[str(HERE / 'one_file.py')]}\n"


def test_a_process_that_cannot_find_a_component_says_how_it_could(
    parts, site: Site, monkeypatch
) -> None:
    from core.settings import load

    script = ModuleType("plait_script")  # as a script registers a component of its own
    exec(OWN, vars(script))
    monkeypatch.setitem(sys.modules, "plait_script", script)
    parts.samplers.register("own", script.Own)
    config = load(None, ["model.path=x", "sampler=own"])
    path = site.folder / "config.pickle"
    path.write_bytes(pickle.dumps(config))
    code = f"import pickle; pickle.load(open({str(path)!r}, 'rb'))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=site.environment()
    )
    assert "UserError" in done.stderr
    assert "Put it in a file or a package, and name that under `plugins:`." in done.stderr


def test_after_a_load_that_failed_nothing_is_taken_for_loaded(site: Site) -> None:
    site.install("good")
    loaded = plugins.load()
    with pytest.raises(UserError, match="nobody"):
        plugins.load(["nobody"])
    assert plugins.load_like([]) is not loaded
    assert registries.samplers.names() == ["good", "hungry"]
