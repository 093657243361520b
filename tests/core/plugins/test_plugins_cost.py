"""What thirty installed plugins cost a start: few milliseconds, and no import of what they hold."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.thirdparty.installed import ROOT, Site

COUNT = 30
ENTRY = """\
from core.hooks import hookimpl


@hookimpl
def register(registries):
    registries.samplers.register("many{n}", "plait_many{n}.parts:Many", needs=("torch",))


@hookimpl
def open_weights(path):
    return None
"""
PARTS = """\
import torch
from core.interfaces import Sampler


class Many(Sampler):
    def __call__(self, logits, rows): ...
"""
LOAD = """\
import json, sys, time
from core import plugins, registry
before, start = set(sys.modules), time.perf_counter()
loaded = plugins.load()
seconds = time.perf_counter() - start
print(json.dumps([seconds, loaded.notes(), registry.samplers.names(),
                  sorted(set(sys.modules) - before)]))
"""


@pytest.fixture
def many(site: Site, write) -> dict[str, str]:
    """Thirty packages, each with a README as long as they are. -> an environment with them."""
    for n in range(COUNT):
        write(f"site/plait_many{n}/__init__.py", ENTRY.format(n=n))
        write(f"site/plait_many{n}/parts.py", PARTS)
        requires = ["plait>=0.1", "torch>=2.9"]
        site.metadata(f"plait-many{n}", "1.0", {f"many{n}": f"plait_many{n}"}, requires)
        metadata = site.folder / f"plait_many{n}-1.0.dist-info" / "METADATA"
        metadata.write_text(metadata.read_text() + "\n" + "A line of a README.\n" * 1000)
    return site.environment()


def load(env: dict[str, str]) -> tuple[float, list[str], list[str], set[str]]:
    """-> the seconds of `plugins.load()` in a process of its own, notes, samplers, new modules."""
    done = subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True, env=env)
    seconds, notes, samplers, modules = json.loads(done.stdout)
    return seconds, notes, samplers, set(modules)


def test_nothing_is_imported_but_the_registration_modules(many: dict[str, str]) -> None:
    ours = load({**many, "PYTHONPATH": str(ROOT)})[3] | sys.stdlib_module_names
    _, notes, samplers, modules = load(many)
    assert notes == []
    assert len([name for name in samplers if name.startswith("many")]) == COUNT
    strangers = {name for name in modules if not {name, name.partition(".")[0]} & ours}
    assert strangers == {f"plait_many{n}" for n in range(COUNT)}


@pytest.mark.speed
def test_thirty_plugins_load_within_fifty_milliseconds(many: dict[str, str]) -> None:
    load(many)  # compiles them
    seconds = min(load(many)[0] for _ in range(9))
    print(f"plugins.load() with {COUNT} packages: {seconds * 1e3:.1f} ms, ours included")
    assert seconds < 0.05
