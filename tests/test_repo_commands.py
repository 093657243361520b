"""The commands that the repository promises to people and to CI: `make` and `.ci/run`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("python", "ruff", "mypy")
# what a `make test` that runs this test would hand on
HANDED_ON = (
    "MAKEFLAGS",
    "MAKELEVEL",
    "MFLAGS",
    "MAKEOVERRIDES",
    "TORCH",
    "VENV",
    "ARGS",
    "WORKERS",
)
CLEAN = {name: value for name, value in os.environ.items() if name not in HANDED_ON}


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A virtual environment whose tools only write down how they were called."""
    folder = tmp_path / "venv"
    (folder / "bin").mkdir(parents=True)
    for tool in TOOLS:
        stub = folder / "bin" / tool
        stub.write_text(f'#!/bin/sh\necho {tool} "$*" >> {folder}/called\n')
        stub.chmod(0o755)
    return folder


def make(venv: Path, *words: str, **environment: str) -> list[str]:
    """Run make with these tools. -> how it called them."""
    called = venv / "called"
    called.unlink(missing_ok=True)
    subprocess.run(
        ["make", *words],
        cwd=ROOT,
        env=CLEAN | {"VENV": str(venv)} | environment,
        capture_output=True,
        check=True,
    )
    return called.read_text().splitlines()


def test_make_test_installs_checks_and_tests(venv: Path) -> None:
    called = make(venv, "test", TORCH="torch==2.13.0")

    assert [line.partition(" -n ")[0] for line in called] == [
        "python -m pip install -q --disable-pip-version-check torch==2.13.0 -e .[test]",
        "ruff check .",
        "ruff format --check .",
        "mypy ",
        "python -m pytest -m not speed",
    ]


def test_make_demo_needs_no_test_tools(venv: Path) -> None:
    called = make(venv, "demo", ARGS="run.prompt=Once")

    assert called == [
        "python -m pip install -q --disable-pip-version-check torch -e .",
        "python -m core.run configs/qwen3-tiny.yaml run.prompt=Once",
    ]


@pytest.mark.parametrize("target", ["demo", "test", "speed"])
def test_nothing_is_installed_twice(venv: Path, target: str) -> None:
    make(venv, target)

    assert not [line for line in make(venv, target) if "pip install" in line]


def test_another_torch_is_installed(venv: Path) -> None:
    make(venv, "test", TORCH="torch==2.13.0")

    assert "torch==2.12.0" in make(venv, "test", TORCH="torch==2.12.0")[0]


def test_speed_runs_the_timed_tests_alone(venv: Path) -> None:
    assert make(venv, "speed")[-1] == "python -m pytest -m speed -s"


def test_pytest_by_itself_finds_the_tests_and_the_plugins() -> None:
    """As CONTRIBUTING.md says. The script leaves sys.path as it is, and so does `python -P`."""
    look = "import plugins.sampling as s; print(s.__file__)"
    names = ["tests/plugins/test_schedulers.py", "--collect-only", "-q"]
    program = f"import sys, pytest; code = pytest.main({names}); {look}; sys.exit(code)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        cwd=ROOT,
        env={name: value for name, value in CLEAN.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == str(ROOT / "plugins" / "sampling" / "__init__.py")


def test_make_alone_explains_itself() -> None:
    done = subprocess.run(["make"], cwd=ROOT, env=CLEAN, capture_output=True, text=True, check=True)

    assert done.stdout.startswith("make demo ")


def test_ci_runs_the_tests_on_one_torch_and_nothing_else() -> None:
    text = (ROOT / ".ci" / "run").read_text()
    commands = [line for line in text.splitlines() if line and not line.startswith("#")]

    assert text.startswith("#!/usr/bin/env bash\n")
    assert commands == [
        "set -euo pipefail",
        'cd "$(dirname "$0")/.."',
        'TORCH="torch==2.13.0" make test',
    ]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
