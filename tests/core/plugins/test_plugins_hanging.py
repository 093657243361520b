"""A plugin whose import hangs: left out in time, and waited for once, not in every process."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time

import pytest

from core import plugins, settings
from core.errors import UserError
from core.registry import registries
from tests.thirdparty.installed import Site

HANGING = """\
from core.hooks import hookimpl
from core.registry import samplers

samplers.register("half", "plait_hang_parts:Half")
import time
time.sleep(30)
"""


@pytest.fixture
def hanging(site: Site, write, monkeypatch: pytest.MonkeyPatch) -> str:
    """Install plait-hang 0.3. -> the place where it hangs."""
    monkeypatch.setenv("PLAIT_PLUGIN_SECONDS", "0.4")
    site.install("good")
    path = write("site/plait_hang.py", HANGING)
    site.metadata("plait-hang", "0.3", {"hang": "plait_hang"})
    return f"{path}, line 6"


def test_a_run_goes_on_without_it_and_the_others(hanging: str, caplog) -> None:
    loaded = plugins.load()
    assert registries.samplers.names() == ["good", "hungry"]
    waiting, given_up = (record.getMessage() for record in caplog.records)
    assert waiting == (
        f"waiting for plugin 'hang' (plait-hang 0.3) at {hanging}. It is given up after 0.4 s "
        "(PLAIT_PLUGIN_SECONDS). -p no:hang leaves it out."
    )
    assert given_up.startswith("plugin 'hang' (plait-hang 0.3) did not load: it hung for 0.4 s")
    assert "Traceback" not in given_up
    (note,) = loaded.notes()
    assert f"(plait-hang 0.3) did not load: it hung for 0.4 s at {hanging}." in note
    assert "plait_hang" not in sys.modules


def test_it_is_waited_for_once(hanging: str) -> None:
    plugins.load()
    began = time.monotonic()
    loaded = plugins.load()
    assert time.monotonic() - began < 0.4
    assert hanging in loaded.notes()[0]


def test_further_processes_of_an_engine_leave_it_out(parts, hanging: str, site: Site) -> None:
    plugins.load(["good"])
    assert plugins.words_for_others(["good"]) == ("good", "no:hang")
    path = site.folder / "config.pickle"
    path.write_bytes(pickle.dumps(settings.load(None, ["model.path=x"], plugins=["good"])))
    code = (
        "import pickle\nfrom core import plugins\n"
        f"config = pickle.load(open({str(path)!r}, 'rb'))\n"
        "plugins.acting(config)\n"
        "print([note for note in plugins.load_like(config.plugins).notes()])\n"
    )
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True,
        env={**site.environment(), "PLAIT_PLUGIN_SECONDS": "60"},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("[]\n", "")
    assert time.monotonic() - began < 30


def test_whoever_names_it_is_refused(hanging: str) -> None:
    with pytest.raises(UserError) as caught:
        plugins.load(["hang"])
    assert str(caught.value).startswith(
        f"plugin 'hang' (plait-hang 0.3) did not load: it hung for 0.4 s at {hanging}."
    )


def test_whoever_blocks_it_waits_for_nothing(hanging: str, caplog) -> None:
    plugins.load(["no:hang"])
    assert caplog.records == []


def test_registering_may_not_hang_either(site: Site, write, monkeypatch) -> None:
    monkeypatch.setenv("PLAIT_PLUGIN_SECONDS", "0.4")
    body = (
        "import time\nfrom core.hooks import hookimpl\n"
        "@hookimpl\ndef register(registries):\n    time.sleep(30)\n"
    )
    path = write("site/plait_slow.py", body)
    site.metadata("plait-slow", "0.3", {"slow": "plait_slow"})
    (note,) = plugins.load().notes()
    assert f"it hung for 0.4 s at {path}, line 5." in note


def test_a_component_that_takes_long_to_import_is_told_of_and_waited_for(
    site: Site, write, monkeypatch, caplog
) -> None:
    monkeypatch.setenv("PLAIT_PLUGIN_SECONDS", "0.3")
    body = (
        "from core.hooks import hookimpl\n"
        "@hookimpl\ndef register(registries):\n"
        "    registries.samplers.register('slow', 'plait_slow_parts:Slow')\n"
    )
    write("site/plait_slow.py", body)
    path = write(
        "site/plait_slow_parts.py",
        "import time\nfrom core.interfaces import Sampler\ntime.sleep(0.8)\n"
        "class Slow(Sampler):\n    def __call__(self, logits, rows): ...\n",
    )
    site.metadata("plait-slow", "0.3", {"slow": "plait_slow"})
    plugins.load()
    assert registries.samplers.get("slow").__name__ == "Slow"
    (record,) = caplog.records
    assert record.getMessage() == (
        f"waiting for sampler 'slow' of plugin 'slow' (plait-slow 0.3) at {path}, line 3. "
        "Ctrl-C ends the run."
    )
