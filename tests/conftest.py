"""What every test may ask for: the device under test, and one thread, no network, no deadline."""

from __future__ import annotations

import gc
import os
import sys
from importlib.metadata import entry_points

# Before torch, tokenizers and huggingface_hub are imported: they read these once.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Tests start hundreds of processes. Each would compile all of Plait again if none kept the result.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import hypothesis
import pytest

from core.testing.plugin import activate

sys.dont_write_bytecode = False

# Machines under load miss deadlines, and whether a change passes must depend on the change alone:
# the usual examples are always the same. `random` looks elsewhere each time.
hypothesis.settings.register_profile("plait", deadline=None, derandomize=True)
hypothesis.settings.register_profile("random", deadline=None, print_blob=True)
hypothesis.settings.load_profile("plait")


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    activate(pluginmanager, parser)  # --on, and the fixture `device`


def pytest_collection_finish() -> None:
    """Keep what was imported and collected, which stays, out of every garbage collection: to look
    at it again takes a third of a second, and some tests collect at each step."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Many tests look at what Plait has by itself; say so where a plugin may be why one failed."""
    found = {point.dist.name for point in entry_points(group="plait") if point.dist}
    if found and terminalreporter.stats.get("failed"):
        names = " ".join(sorted(found))
        terminalreporter.write_line(
            "Plugins are installed in this environment, and tests may have failed because of them. "
            f"To be sure: python -m pip uninstall -y {names}"
        )
