"""Plugins in other processes and other versions, and what loading many of them costs."""

from __future__ import annotations

import pickle
import subprocess
import sys
from types import ModuleType

from core import plugins
from core.plugins.discovery import Plugin
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


def test_thirty_installed_plugins_cost_less_than_fifty_milliseconds(site: Site, write) -> None:
    write("empty/nothing", "")
    body = HERE.joinpath("packages/plait_good.py").read_text()
    for n in range(30):
        write(f"site/plait_many{n}.py", body.replace('"good"', f'"good{n}"'))
        site.metadata(f"plait-many{n}", "1.0", {f"many{n}": f"plait_many{n}"})
    code = (
        "import sys, time\n"
        "from core import plugins, registry\n"
        "start = time.perf_counter()\n"
        "plugins.load()\n"
        "print(time.perf_counter() - start, len(registry.samplers.names()))\n"
    )

    def seconds(env: dict[str, str]) -> float:
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
        return float(out.stdout.split()[0])

    with_many = site.environment()
    without = {**with_many, "PYTHONPATH": with_many["PYTHONPATH"].split(":")[-1]}
    cost = min(seconds(with_many) - seconds(without) for _ in range(3))
    print(cost)
    assert cost < 0.05
