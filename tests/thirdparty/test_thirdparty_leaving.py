"""Plugins that want to end the program, or to take a registry away, end only themselves."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from core.registry import registries
from tests.thirdparty import faulty
from tests.thirdparty.installed import Site

LEAVING = ("KeyboardInterrupt", "SystemExit", "GeneratorExit")
FAULTS = {
    **{name: f'raise {name}("enough")' for name in LEAVING},
    "replace": "from core.registry import registries; registries.samplers = None",
    "delete": "from core.registry import registries; del registries.samplers",
    "add": "from core.registry import registries; registries.own = registries.samplers",
    "method": "from core.registry import registries; registries.samplers.get = None",
    "notes": "from core.registry import registries; registries.notes = None",
    "module": "import core.registry; core.registry.samplers = None",
    "module_delete": "import core.registry; del core.registry.registries",
}
SAID = {name: f"{name}: enough (" for name in LEAVING}


def said_of(fault: str) -> str:
    return SAID.get(fault, "is shared by all plugins: it cannot be replaced or deleted, only added")


@pytest.mark.parametrize("place", ["import", "register"])
@pytest.mark.parametrize("fault", FAULTS)
def test_it_harms_only_who_uses_it_and_is_told_with_its_line(
    fault, place, site: Site, config, here, expected, caplog
) -> None:
    every = registries.all()
    faulty.install(site, place, FAULTS[fault])
    run = here(config())
    assert (run.status, run.tokens) == (0, expected), run.err
    (text,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert text.startswith("plugin 'faulty' (plait-faulty 0.7) did not load:\n")
    run = here(config(attention="faulty"))
    assert run.status == 2
    assert "no attention backend is called 'faulty'" in run.err
    note = next(line for line in run.err.splitlines() if line.startswith("note: "))
    assert note.startswith("note: plugin 'faulty' (plait-faulty 0.7) did not load: ")
    assert said_of(fault) in note
    assert note.endswith(f"({site.folder / 'plait_faulty.py'}, line 6)")
    assert registries.all() == every


@pytest.mark.parametrize("fault", LEAVING)
def test_a_component_that_ends_the_program_when_imported_is_blamed(
    fault, site: Site, config, here, capsys
) -> None:
    faulty.install(site, "target", FAULTS[fault])
    run = here(config(attention="faulty"))
    assert run.status == 2
    assert "attention backend 'faulty' of plugin 'faulty' (plait-faulty 0.7) cannot be" in run.err
    assert f"{SAID[fault]}{site.folder / 'plait_faulty_parts.py'}, line 6)" in run.err
    listed = here(config(), "--help", "attention")
    assert listed.status == 0
    assert f"cannot be imported: {SAID[fault]}" in listed.out


@pytest.mark.parametrize("fault", LEAVING)
def test_a_hook_nobody_asked_for_cannot_end_the_program(
    fault, site: Site, config, here, expected, caplog
) -> None:
    faulty.install(site, "open_tokenizer", FAULTS[fault])
    run = here(config())
    assert (run.status, run.tokens) == (0, expected), run.err
    (text,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert f"failed in its hook open_tokenizer: {SAID[fault]}" in text


@pytest.mark.parametrize("fault", ["raise SystemExit(0)", "import sys; sys.exit()", "exit(0)"])
@pytest.mark.parametrize("place", ["init", "plan", "forward", "configure", "engine_started"])
def test_who_is_used_cannot_end_the_run_as_if_it_had_come_to_its_end(
    place, fault, site: Site, config, here
) -> None:
    faulty.install(site, place, fault)
    used = {"plugins": ["faulty"]} if place in faulty.HOOK_PLACES else {"attention": "faulty"}
    run = here(config(**used))
    assert (run.status, run.tokens) == (1, None), run.err
    assert "SystemExit" in run.err
    assert (
        run.err.rstrip()
        .splitlines()[-1]
        .startswith(
            "This is a fault of plugin 'faulty' (plait-faulty 0.7), not of your configuration."
        )
    )


# Ctrl-C that somebody presses

WAITING = 'import sys, time; print("waiting", file=sys.stderr, flush=True); time.sleep(60)'
SWALLOWING = f"""try:
            {WAITING}
        except BaseException:
            raise ImportError("it is not there") from None"""
IGNORING = f"""try:
            {WAITING}
        except BaseException:
            pass"""


@pytest.mark.parametrize("place", ["import", "register", "target"])
@pytest.mark.parametrize("fault", [WAITING, SWALLOWING, IGNORING], ids=["through", "as", "never"])
def test_ctrl_c_while_plugins_load_ends_the_program(
    fault: str, place: str, site: Site, config, tmp_path: Path
) -> None:
    faulty.install(site, place, fault)
    run = subprocess.Popen(
        [sys.executable, "-m", "core.run", str(config(attention="faulty"))],
        env={**site.environment(), "PLAIT_PLUGIN_SECONDS": "50"},
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stderr is not None
    for line in run.stderr:
        if line == "waiting\n":
            break
    time.sleep(0.1)
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=30)
    assert run.returncode == 130
    assert "did not load" not in err
    assert "cannot be imported" not in err


def test_ctrl_c_is_whose_it_was_before(site: Site, config, here) -> None:
    """Also behind a plugin that puts its own before the handler it found."""
    before = signal.getsignal(signal.SIGINT)
    assert here(config()).status == 0
    assert signal.getsignal(signal.SIGINT) is before
    own = "import signal; old = signal.getsignal(2); signal.signal(2, lambda *given: old(*given))"
    faulty.install(site, "import", own)
    try:
        assert here(config()).status == 0
        assert signal.getsignal(signal.SIGINT) is not before
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
