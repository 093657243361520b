"""The curl commands of the README and the configuration do what they promise."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from tests.plugins.serve.running import ROOT, Launched

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")


def commands() -> list[str]:
    """Every command that begins with `curl`, with its continued lines."""
    found = []
    for file in ("README.md", "configs/qwen3-serve.yaml"):
        text = re.sub(r"^# ?", "", (ROOT / file).read_text(), flags=re.MULTILINE)
        found += re.findall(r"^ *curl (?:.*\\\n)*.*$", text, re.MULTILINE)
    return found


def test_there_are_commands() -> None:
    assert commands()


@pytest.mark.parametrize("command", commands())
def test_a_command_is_answered(server: Launched, command: str) -> None:
    assert "http://127.0.0.1:8000/" in command
    here = command.replace("http://127.0.0.1:8000/", server.url + "/")
    here = here.replace("curl ", "curl --silent --show-error --fail-with-body ", 1)
    done = subprocess.run(here, shell=True, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
