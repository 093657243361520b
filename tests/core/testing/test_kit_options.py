"""The kit as a third party meets it: installed, by its entry point, beside other projects."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.thirdparty.installed import ROOT, Site

GUIDE = ROOT / "docs" / "plugins.md"


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that has plait installed, with its pytest11 entry point."""
    site = Site(tmp_path / "site")
    site.folder.mkdir()
    site.metadata("plait", "0.1.0", {})
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    lines = [f"{name} = {value}" for name, value in declared["pytest11"].items()]
    place = site.folder / "plait-0.1.0.dist-info" / "entry_points.txt"
    place.write_text("\n".join(["[pytest11]", *lines, ""]))
    return site.environment() | {"OMP_NUM_THREADS": "1"}


def pytest_run(
    folder: Path, environment: dict[str, str], *words: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def example() -> str:
    """The scheduler that the guide begins with."""
    found = re.search(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def test_one_command_tests_the_guides_example(tmp_path: Path, installed: dict[str, str]) -> None:
    (tmp_path / "shortest.py").write_text(example())
    command = re.search(r"pytest (--pyargs core.testing --load .*)", GUIDE.read_text())
    assert command is not None
    run = pytest_run(tmp_path, installed, *command[1].split(), "-v")
    assert run.returncode == 0, run.stdout + run.stderr
    tests = re.findall(r"test_(\w+?)_contract.py::\w+\[(\w+)", run.stdout)
    assert set(tests) == {("scheduler", "shortest")}


def test_the_kit_may_be_named_as_a_plugin_where_it_is_one(
    tmp_path: Path, installed: dict[str, str]
) -> None:
    words = ["-p", "core.testing.plugin", "--pyargs", "core.testing", "--sharding=colwise"]
    run = pytest_run(tmp_path, installed, *words)
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_name_that_is_not_there_is_an_error_that_lists_what_is(
    tmp_path: Path, installed: dict[str, str]
) -> None:
    run = pytest_run(
        tmp_path, installed, "--pyargs", "core.testing", "--scheduler=fcsf", "--backend=x"
    )
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert "no scheduler is called 'fcsf'. Did you mean 'fcfs'?" in run.stderr
    assert re.search(r"no attention backend is called 'x'. .*sdpa", run.stderr)
    assert "Traceback" not in run.stderr
    run = pytest_run(tmp_path, installed, "--pyargs", "core.testing", "--load", "./none.py")
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert "there is no such file" in run.stderr


NEEDY = """
from dataclasses import dataclass, field
from core.registry import schedulers
from core.scheduling import QueueScheduler

@schedulers.register("needy")
class Needy(QueueScheduler):
    @dataclass(kw_only=True)
    class Options(QueueScheduler.Options):
        short: int = field(metadata={"help": "most tokens of a short prompt"})
        names: list[str] = field(default_factory=list, metadata={"help": "names"})

        def __post_init__(self):
            super().__post_init__()
            if self.short < 0:
                raise ValueError("short must not be below 0")

    def order(self, request):
        assert (self.options.short, self.options.names) == (7, ["a", "b"])
        return request.arrival
"""
KIT = ("--pyargs", "core.testing", "--load", "./needy.py")


def test_an_option_that_is_missing_is_told_once_with_what_to_write(
    tmp_path: Path, installed: dict[str, str]
) -> None:
    (tmp_path / "needy.py").write_text(NEEDY)
    run = pytest_run(tmp_path, installed, *KIT, "--scheduler=needy", "--reference=/nonexistent")
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert run.stderr.strip() == (
        "ERROR: --scheduler: the scheduler 'needy' has options without a default. Give them as a "
        "configuration does: --scheduler='{use: needy, short: VALUE}'.\n"
        "--reference=/nonexistent: there is no such folder."
    )


def test_a_component_is_tested_with_the_options_that_it_is_given(
    tmp_path: Path, installed: dict[str, str]
) -> None:
    (tmp_path / "needy.py").write_text(NEEDY)
    word = "--scheduler={use: needy, short: 7, names: [a, b]}"
    run = pytest_run(tmp_path, installed, *KIT, word, "-v")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "needy-short-7-names-a-b" in run.stdout


CUDA_ONLY = """
from core.registry import attention
from core.interfaces import AttentionBackend

@attention.register("elsewhere")
class Elsewhere(AttentionBackend):
    @classmethod
    def rejects(cls, shape):
        return [] if shape.device == "moon" else ["it runs on the moon"]

    def forward(self, q, k, v, cache, meta):
        raise NotImplementedError
"""


OF_NOBODY = """
from core.registry import models
from models.qwen3.architecture import Qwen3

@models.register("OursForCausalLM")
class Ours(Qwen3):
    pass
"""


def test_a_model_without_a_checkpoint_is_one_failure(
    tmp_path: Path, installed: dict[str, str]
) -> None:
    (tmp_path / "ours.py").write_text(OF_NOBODY)
    words = ["--pyargs", "core.testing", "--load", "./ours.py", "--model=OursForCausalLM"]
    run = pytest_run(tmp_path, installed, *words)
    assert run.returncode == pytest.ExitCode.TESTS_FAILED
    assert re.search(r"1 failed, \d+ skipped", run.stdout)
    assert "give a checkpoint of it with --reference=DIR" in run.stdout


def test_what_was_asked_for_and_cannot_be_tested_is_a_failure(
    tmp_path: Path, installed: dict[str, str]
) -> None:
    (tmp_path / "elsewhere.py").write_text(CUDA_ONLY)
    words = ["--pyargs", "core.testing", "--load", "./elsewhere.py", "--backend=elsewhere"]
    run = pytest_run(tmp_path, installed, *words, "-k", "ordinary or types", "-rs")
    assert run.returncode == pytest.ExitCode.TESTS_FAILED
    assert "nothing was tested: it runs on the moon" in run.stdout
    assert re.search(r"1 failed, \d+ skipped", run.stdout)
    assert "SKIPPED" in run.stdout


OTHER_CONFTEST = """
import pytest

def pytest_addoption(parser):
    for name in ("--backend", "--kernels", "--sampler", "--scheduler", "--sharding",
                 "--quantization", "--runner", "--model", "--load", "--on", "--reference"):
        parser.addoption(name, default="mine")

@pytest.fixture
def scheduler(request):
    return request.config.getoption("--scheduler")
"""
OTHER_TEST = """
import sys

def test_theirs(request, scheduler):
    assert scheduler == "mine"
    assert request.config.getoption("--on") == "there"
    assert "torch" not in sys.modules
    assert "core.registry" not in sys.modules
    assert "core.testing.plugin" in sys.modules
"""


@pytest.mark.parametrize(
    ("device", "said"),
    [("tpu", "it is cpu, cuda or cuda:N"), ("cuda", "this machine has no CUDA device")],
)
def test_a_device_that_is_not_there_is_no_success(
    tmp_path: Path, installed: dict[str, str], device: str, said: str
) -> None:
    none_there = installed | {"CUDA_VISIBLE_DEVICES": ""}
    words = ["--pyargs", "core.testing", "--scheduler=fcfs", "--on", device]
    run = pytest_run(tmp_path, none_there, *words)
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"--on {device}: {said}." in run.stderr


def test_other_projects_do_not_notice_it(tmp_path: Path, installed: dict[str, str]) -> None:
    """They may have options and fixtures of the same names."""
    (tmp_path / "conftest.py").write_text(OTHER_CONFTEST)
    (tmp_path / "test_other.py").write_text(OTHER_TEST)
    run = pytest_run(tmp_path, installed, "--on=there")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "plait_words" not in pytest_run(tmp_path, installed, "--fixtures").stdout


def test_the_plugin_imports_itself_alone(installed: dict[str, str]) -> None:
    code = (
        "import sys, pytest, _pytest.config\n"
        "before = set(sys.modules)\n"
        "import core.testing.plugin\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], env=installed, capture_output=True, text=True, check=True
    )
    own = ["core", "core.testing", "core.testing.plugin", "core.visible"]
    assert run.stdout.split() == own


@pytest.mark.speed
def test_the_plugin_costs_less_than_10_ms(installed: dict[str, str]) -> None:
    code = (
        "import sys, time, pytest\n"
        "began = time.perf_counter()\n"
        "import core.testing.plugin\n"
        "print(time.perf_counter() - began)"
    )
    command = [sys.executable, "-c", code]
    times = [
        float(subprocess.run(command, env=installed, capture_output=True, text=True).stdout)
        for _ in range(5)
    ]
    print(f"\nimporting the pytest plugin takes {1e3 * min(times):.2f} ms")
    assert min(times) < 0.01


def test_workers_of_xdist_have_the_options(tmp_path: Path, installed: dict[str, str]) -> None:
    pytest.importorskip("xdist")
    words = ["--pyargs", "core.testing", "--scheduler", "fcfs", "-k", "without_requests"]
    run = pytest_run(tmp_path, installed, *words, "-n1")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "1 passed" in run.stdout


def test_help_shows_the_options_of_a_run_of_the_kit(
    tmp_path: Path, installed: dict[str, str]
) -> None:
    assert (
        "--backend=NAME"
        in pytest_run(tmp_path, installed, "--pyargs", "core.testing", "--help").stdout
    )
    assert "--backend" not in pytest_run(tmp_path, installed, "--help").stdout
