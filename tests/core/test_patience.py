"""Imports that do not end: who is waited for is said, and what can be ended soundly is ended."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

from core import patience
from core.errors import UserError
from core.patience import Patience, seconds_allowed, told_if_long

Module = Callable[[str, str], str]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Module]:
    """Write a module that can be imported. -> its path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(patience, "RETRY", 0.1)
    before = set(sys.modules)

    def write(name: str, body: str) -> str:
        path = tmp_path / f"{name}.py"
        path.write_text(body)
        return str(path)

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def imported(name: str, limit: float = 0.3) -> float:
    """Import under watch. -> the seconds that it took."""
    began = time.monotonic()
    with Patience(limit) as watch, watch.on("plugin 'x'", name, "-p no:x leaves it out."):
        import_module(name)
    return time.monotonic() - began


@pytest.mark.parametrize(
    "waiting",
    [
        "import time; time.sleep(30)",
        "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()",
        "import socket; socket.create_server(('localhost', 0)).accept()",
        "import subprocess; subprocess.run(['sleep', '30'])",
        "import os; os.read(os.pipe()[0], 1)",
        "while True: pass",
    ],
)
def test_whatever_it_waits_for_is_ended_and_its_line_is_named(
    module: Module, caplog, waiting: str
) -> None:
    path = module("waits", f"'''A module.'''\n\n{waiting}\n")
    with pytest.raises(UserError) as caught:
        imported("waits")
    assert f"it hung for 0.3 s at {path}, line 3" in str(caught.value)
    assert "waits" not in sys.modules
    (record,) = caplog.records
    message = record.getMessage()
    assert message.startswith(f"waiting for plugin 'x' at {path}, line 3")
    assert message.endswith("-p no:x leaves it out.")


def test_a_quick_import_is_not_spoken_of(module: Module, caplog) -> None:
    module("quick", "x = 1\n")
    assert imported("quick") < 0.3
    assert caplog.records == []
    assert sys.modules["quick"].x == 1


def test_what_swallows_the_first_interruption_gets_another(module: Module, caplog) -> None:
    loop = "for _ in range(2):\n    try:\n        time.sleep(30)\n    except:\n        pass\n"
    module("stubborn", f"import time\n{loop}time.sleep(30)\n")
    with pytest.raises(UserError, match="it hung"):
        imported("stubborn")
    assert "does not let itself be interrupted" in caplog.records[-1].getMessage()


def test_what_a_run_imports_anyway_is_neither_ended_nor_spoken_of(
    module: Module, caplog, monkeypatch
) -> None:
    monkeypatch.setattr(patience, "SHARED", {"heavy"})
    module("heavy", "import time\ntime.sleep(0.8)\n")
    module("light", "x = 1\nimport heavy\n")
    assert imported("light") > 0.8
    assert caplog.records == []


def test_a_machine_that_stands_still_is_not_held_against_an_import(
    module: Module, caplog, monkeypatch
) -> None:
    module("brief", "import time\ntime.sleep(0.3)\n")
    real = time.monotonic
    stops = iter([0.0, 0.0, 0.8])
    passed = [0.0]

    def clock() -> float:
        if threading.current_thread().name == "plait-patience":
            passed[0] += next(stops, 0.0)
        return real() + passed[0]

    monkeypatch.setattr(patience.time, "monotonic", clock)
    imported("brief", limit=0.7)
    assert caplog.records == []


def test_another_thread_is_told_and_left_alone(module: Module, caplog) -> None:
    module("elsewhere", "import time\ntime.sleep(0.8)\n")
    took: list[float] = []
    thread = threading.Thread(target=lambda: took.append(imported("elsewhere")))
    thread.start()
    thread.join()
    assert took[0] > 0.8
    (record,) = caplog.records
    assert "given up" not in record.getMessage()


def test_signals_of_others_are_passed_on_and_their_handler_comes_back(module: Module) -> None:
    heard: list[int] = []
    former = signal.signal(signal.SIGURG, lambda number, frame: heard.append(number))
    try:
        ours = signal.getsignal(signal.SIGURG)
        with Patience(5.0) as watch, watch.on("x", "x", ""):
            os.kill(os.getpid(), signal.SIGURG)
            time.sleep(0.05)
        assert signal.getsignal(signal.SIGURG) is ours
    finally:
        signal.signal(signal.SIGURG, former)
    assert heard == [signal.SIGURG]


def test_what_was_chosen_is_told_of_and_not_ended(module: Module, caplog, monkeypatch) -> None:
    monkeypatch.setenv("PLAIT_PLUGIN_SECONDS", "0.3")
    path = module("chosen", "import time\ntime.sleep(0.8)\n")
    with told_if_long("sampler 'x'", "chosen:X"):
        import_module("chosen")
    with told_if_long("sampler 'x'", "chosen:X"):
        time.sleep(0.5)  # no import any more
    (record,) = caplog.records
    assert record.getMessage() == f"waiting for sampler 'x' at {path}, line 2. Ctrl-C ends the run."


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan"])
def test_a_limit_that_is_no_time_is_refused(monkeypatch, text: str) -> None:
    monkeypatch.setenv("PLAIT_PLUGIN_SECONDS", text)
    with pytest.raises(UserError, match="PLAIT_PLUGIN_SECONDS"):
        seconds_allowed()


def test_the_limit_is_ten_seconds_or_what_is_said(monkeypatch) -> None:
    monkeypatch.delenv("PLAIT_PLUGIN_SECONDS", raising=False)
    assert seconds_allowed() == 10
    monkeypatch.setenv("PLAIT_PLUGIN_SECONDS", "inf")
    assert seconds_allowed() == float("inf")
