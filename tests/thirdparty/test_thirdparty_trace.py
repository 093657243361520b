"""The package examples/plait-trace, installed, passes its own tests and runs as its README says."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.thirdparty.installed import ROOT, Site

PACKAGE = ROOT / "examples" / "plait-trace"


@pytest.fixture
def traced(site: Site) -> Site:
    """The package laid out as pip does, with what its pyproject.toml says."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    shutil.copytree(PACKAGE / "src", site.folder, dirs_exist_ok=True)
    points = project["entry-points"]["plait"]
    site.metadata(project["name"], project["version"], points, project["dependencies"])
    return site


def test_its_own_tests_pass(traced: Site, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(PACKAGE / "tests")],
        env=traced.environment(), cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_command_of_its_readme_leaves_a_trace(traced: Site, config, apart, tmp_path) -> None:
    run = apart(config(parallel={"tensor": 2}), "-p", "plait-trace")
    assert run.status == 0, run.err
    assert run.err.count("tracing to") == 1  # rank 0 alone
    assert "WARNING" not in run.err
    events = json.loads((tmp_path / "plait-trace.json").read_text())
    assert sum(event["name"] == "decode" for event in events) == 3


def test_a_run_that_does_not_name_it_writes_nothing(traced: Site, config, here, tmp_path) -> None:
    assert here(config()).status == 0
    assert not list(tmp_path.glob("*.json"))
