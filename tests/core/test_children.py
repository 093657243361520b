"""Processes that are started find the code of the one that starts them, wherever that runs."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from core import children
from plugins.executors import ranks
from plugins.serve.engine import spawning

ROOT = Path(__file__).parents[2]
SEEN = """
    import sys
    import core, plugins
    from multiprocessing.connection import Connection

    seen = f"{core.__file__} {plugins.__file__}"
    if len(sys.argv) == 1:
        print(seen)
    else:
        connection = Connection(int(sys.argv[1]))
        connection.send(("here", seen))
        connection.recv_bytes()
"""
ITS_OWN = f"{ROOT}/core/__init__.py {ROOT}/plugins/__init__.py"


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with a program `seen`, which says which `core` and `plugins` it has found."""
    folder = tmp_path / "programs"
    folder.mkdir()
    folder.joinpath("seen.py").write_text(textwrap.dedent(SEEN))
    return folder


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder where others have modules of the same names."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for name in ("core", "plugins"):
        folder.joinpath(f"{name}.py").write_text("raise SystemExit('not ours')\n")
    return folder


@pytest.fixture
def within(programs, elsewhere, monkeypatch) -> None:
    """This process stands in that folder."""
    monkeypatch.syspath_prepend(str(programs))
    monkeypatch.chdir(elsewhere)


def test_a_rank_does_not_look_into_the_working_directory(within, monkeypatch):
    monkeypatch.setattr(ranks, "PROGRAM", "seen")
    started = ranks.Ranks(2, 1)
    try:
        assert started.collect("here") == [("here", ITS_OWN)]
    finally:
        started.close()


def test_an_engines_process_does_not_look_into_the_working_directory(within, monkeypatch):
    monkeypatch.setattr(spawning, "PROGRAM", "seen")
    process, connection = spawning.start_process()
    with connection:
        connection.settimeout(20)
        assert ITS_OWN.encode() in connection.recv(4096)
    assert process.stdin is not None
    process.stdin.close()
    process.wait(10)


@pytest.mark.parametrize("moves", [False, True])
def test_a_checkout_that_is_not_installed(programs, elsewhere, moves):
    """Started there, its code is found by the working directory alone, and that may change."""
    script = f"""
        import os, subprocess
        from core.children import command, module_path
        {f"os.chdir({str(elsewhere)!r})" if moves else ""}
        path = os.pathsep.join([module_path(), {str(programs)!r}])
        subprocess.run(command("seen"), env={{**os.environ, "PYTHONPATH": path}}, check=True)
    """
    seen = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert seen.stdout.strip() == ITS_OWN, seen.stderr


def test_the_path_stays_as_it_is_where_that_is_enough(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT), "/somewhere"])
    assert children.module_path() == f"{ROOT}{os.pathsep}/somewhere"


def test_every_process_is_started_so():
    """A plugin, say, that tries grammars in a process of its own."""
    places = [ROOT / "core", ROOT / "plugins", ROOT / "models"]
    kit = {ROOT / "core" / "testing", ROOT / "core" / "scaffold"}  # which start what a user does
    files = [
        file
        for place in places
        for file in place.rglob("*.py")
        if not kit & {*file.parents} and file.name != "children.py"
    ]
    assert [str(file) for file in files if "sys.executable" in file.read_text()] == []
