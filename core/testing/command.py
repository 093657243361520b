"""The kit as a command that a plugin's own test can run."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points

from core.testing.plugin import PACKAGE

PLUGIN = f"{PACKAGE}.plugin"


def run_kit(*words: str) -> str:
    """Run `pytest --pyargs core.testing WORDS` as a process, from the folder where we are.

    >>> run_kit("--load", "my_package", "--sampler=my-sampler")

    -> its report. AssertionError with the report if a test fails, or nothing is tested.
    """
    command = [sys.executable, "-m", "pytest", "--pyargs", PACKAGE, "-p", "no:cacheprovider"]
    if not _knows_itself():
        command += ["-p", PLUGIN]
    done = subprocess.run(
        [*command, "-q", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def _knows_itself() -> bool:
    """Whether pytest finds the kit's options by itself; to say it twice is an error."""
    if os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
        return False
    return any(point.value == PLUGIN for point in entry_points(group="pytest11"))
