"""Fixtures for plugins and settings: packages to install, and a process that knows only those."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from core import plugins
from core.config import COMPONENTS
from core.interfaces import (
    App,
    AttentionBackend,
    Executor,
    Kernels,
    Runner,
    Sampler,
    Scheduler,
)
from core.plugins import discovery
from core.registry import Registries, registries
from core.settings import auto
from tests.thirdparty.installed import Site
from tests.thirdparty.parts import MinP, Recite


@pytest.fixture
def isolated(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registries]:
    """Registries without plugins; whatever a test loads is forgotten after it."""
    before, modules = registries.snapshot(), set(sys.modules)
    monkeypatch.setattr(plugins, "_imported", {})
    monkeypatch.setattr(plugins, "_warned", set())
    monkeypatch.setattr(plugins, "_current", None)
    monkeypatch.setattr(discovery, "BUILTIN", ())
    registries.restore({name: {} for name in registries.all()})
    yield registries
    registries.notes.clear()
    registries.restore(before)
    for name in set(sys.modules) - modules:
        if name.startswith(("plait_", "mine")):
            del sys.modules[name]


@pytest.fixture
def site(isolated: Registries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Where packages of tests/thirdparty can be installed, seen by this process."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return Site(folder)


@pytest.fixture
def parts(isolated: Registries, monkeypatch: pytest.MonkeyPatch) -> Registries:
    """A component for every section, so that a configuration can be complete on a CPU."""
    monkeypatch.setattr(auto, "device", lambda asked: ("cpu", "auto: none here"))
    monkeypatch.delenv("RANK", raising=False)
    kinds = dict(
        attention=(AttentionBackend, "sdpa"),
        kernels=(Kernels, "torch"),
        runner=(Runner, "eager"),
        scheduler=(Scheduler, "fcfs"),
        sampler=(Sampler, "default"),
        executor=(Executor, "local"),
        run=(App, "generate"),
    )
    for section, (base, name) in kinds.items():
        whole = dict.fromkeys(base.__abstractmethods__, lambda self, *given: None)
        isolated.all()[COMPONENTS[section]].register(name, type(f"The{name}", (base,), whole))
    isolated.samplers.register("min-p", MinP)
    isolated.sources.register("dummy", MinP)
    isolated.apps.register("recite", Recite)
    return isolated


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Write a file below the working folder of the test."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write
