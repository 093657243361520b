"""Packages that `python -m core.new_plugin` writes: tests, linters and the kit find them right."""

from __future__ import annotations

import ast
import dataclasses
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from core import SamplingParams, __version__
from core.importing import load_path
from core.new_plugin import main
from core.registry import registries
from core.scaffold.kinds import COMMON, KINDS, TEMPLATES
from core.scaffold.names import names_for
from core.scaffold.writing import component_code, package
from core.testing.command import run_kit
from core.testing.plugin import KINDS as TESTED
from tests.thirdparty.installed import ROOT
from tools.make_reference import interfaces
from tools.public_names import imported, listed

RULES = ["--select", "E,F,I,UP,B,SIM,RUF,PT", "--ignore", "RUF001,RUF002,RUF003"]
FEWER = [*RULES, "--extend-ignore", "E501"]
# those that share a run of the kit
TOGETHER = ("sampler", "attention", "kernels", "sharding", "quantization", "runner")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package my-KIND of each kind."""
    folder = tmp_path_factory.mktemp("written")
    for kind in KINDS:
        assert main([f"my-{kind}", "--kind", kind, "--into", str(folder)]) == 0
    return folder


def own_tests(folders: Sequence[Path], *words: str) -> str:
    """Run the tests of packages as their authors would, by PYTHONPATH. -> the report."""
    path = os.pathsep.join(map(str, [ROOT, *folders]))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs"]
    done = subprocess.run(
        [*command, *[str(folder / "tests") for folder in folders], *words],
        env={**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=folders[0], capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_tests_of_every_package_pass(written: Path) -> None:
    """But for the kit of some, which the next test runs in one process for all."""
    alone = [k.name for k in KINDS.values() if k.option and k.name not in TOGETHER]
    words = ["not kit", *(f"test_my_{kind}" for kind in alone)]
    report = own_tests([written / f"my-{kind}" for kind in KINDS], "-k", " or ".join(words))
    assert f"{len(TOGETHER)} deselected" in report
    assert "skipped" not in report
    assert all("def test_" in file_of(written, kind).read_text() for kind in KINDS)


def test_the_kit_passes_as_the_packages_run_it(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [str(written / f"my-{kind}") for kind in TOGETHER]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *folders]))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.chdir(tmp_path)
    words = [word for kind in TOGETHER for word in said_to_the_kit(file_of(written, kind))]
    report = run_kit(*words, "-vv")
    for kind in TOGETHER:
        assert re.search(rf"\[(?:.*-)?my-{kind}\b.*PASSED", report), kind


def file_of(written: Path, kind: str) -> Path:
    return written / f"my-{kind}" / "tests" / f"test_my_{kind}.py"


def said_to_the_kit(file: Path) -> list[str]:
    """The words of the one call of `run_kit` in a test file."""
    calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    (call,) = [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == "run_kit"]
    return [ast.literal_eval(word) for word in call.args]


def test_a_package_runs_the_kit_as_its_readme_says(written: Path) -> None:
    for kind in TOGETHER:
        readme = (written / f"my-{kind}" / "README.md").read_text()
        (said,) = re.findall(r"^    python -m pytest --pyargs core.testing (.*)$", readme, re.M)
        assert shlex.split(said) == said_to_the_kit(file_of(written, kind))


def test_a_faulty_component_fails_the_tests_of_its_package(tmp_path: Path) -> None:
    assert main(["my-scheduler", "--kind", "scheduler", "--into", str(tmp_path)]) == 0
    file = tmp_path / "my-scheduler" / "my_scheduler" / "scheduler.py"
    file.write_text(file.read_text() + "\n    def has_work(self):\n        return False\n")
    with pytest.raises(AssertionError, match="test_scheduler_contract"):
        own_tests([tmp_path / "my-scheduler"], "-k", "kit")


@pytest.mark.parametrize("name", ["my-$kind", "x", "Plait.A_Name--with.Many_Words"])
def test_linters_and_the_compiler_have_nothing_to_say(tmp_path: Path, name: str) -> None:
    for kind in KINDS:
        given = name.replace("$kind", kind)
        assert main([given, "--kind", kind, "--into", str(tmp_path / kind)]) == 0
    short = name.startswith("my")  # other names make lines of another length
    for command in (["check", *RULES], ["format", "--check"]) if short else (["check", *FEWER],):
        ruff = [sys.executable, "-m", "ruff", *command]
        done = subprocess.run(ruff, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
    for file in tmp_path.rglob("*.py"):
        tree = ast.parse(file.read_text(), filename=str(file))
        docstring = ast.get_docstring(tree)
        assert docstring is not None, file
        assert docstring.splitlines()[0].endswith("."), file


def test_the_registration_module_imports_nothing_but_the_mark(written: Path) -> None:
    for kind in KINDS:
        tree = ast.parse((written / f"my-{kind}" / f"my_{kind}" / "__init__.py").read_text())
        imported = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
        imported |= {
            a.name for node in tree.body if isinstance(node, ast.Import) for a in node.names
        }
        assert imported - {"logging", f"my_{kind}.observer"} == {"core.hooks"}, kind


def test_a_package_says_what_it_is_and_what_it_needs(written: Path) -> None:
    for kind in KINDS.values():
        folder = written / f"my-{kind.name}"
        read = tomllib.loads((folder / "pyproject.toml").read_text())
        assert read["project"]["name"] == f"my-{kind.name}"
        assert read["project"]["entry-points"]["plait"] == {f"my-{kind.name}": f"my_{kind.name}"}
        (line,) = read["project"]["dependencies"]
        assert Requirement(line).name == "plait"
        assert Requirement(line).specifier.contains(__version__, prereleases=True)
        readme = (folder / "README.md").read_text()
        (use,) = re.findall(r"```yaml\n(.*?)```", readme, re.DOTALL)
        assert f"my-{kind.name}" in use or "MyModelForCausalLM" in use
        assert isinstance(yaml.safe_load(use), dict)
        for part in ("pip install", "-p no:my-", "python -m pytest", "python -m build"):
            assert part in readme
        assert ("--pyargs core.testing" in readme) == bool(kind.option)
        assert "\n\n\n" not in readme
        ignored = (folder / ".gitignore").read_text().split()
        assert {"__pycache__/", "dist/", "*.egg-info/"} <= set(ignored)


def test_every_template_is_filled_and_used() -> None:
    assert {folder.name for folder in TEMPLATES.iterdir()} == {COMMON, *KINDS}
    for kind in KINDS.values():
        files = package(names_for(f"my-{kind.name}", kind), kind)
        found = {f.name for folder in (COMMON, kind.name) for f in (TEMPLATES / folder).iterdir()}
        assert len(files) == len(
            found - {"kit.md.tmpl", "use.yaml.tmpl"}
        )  # these go into README.md
        for name, text in files.items():
            assert "$" not in text, name
            assert text.endswith("\n"), name
            assert not text.endswith("\n\n"), name


def test_every_component_says_which_version_of_its_contract_it_has() -> None:
    """When one is raised, the template has to follow."""
    for kind in KINDS.values():
        if kind.registry:
            base = load_path(registries.all()[kind.registry].base)
            code = component_code(kind)
            assert f"    interface = {base.interface}  # the version of the contract" in code


def test_packages_import_from_core_only_what_is_public(written: Path) -> None:
    known = {*listed(), *interfaces(), ("core.hooks", "hookimpl"), ("core", "plugins")}
    known |= {("core.registry", name) for name in (*registries.all(), "registries")}
    things = {id(getattr(import_module(module), name)) for module, name in known}
    found = imported(*[str(written / f"my-{kind}") for kind in KINDS])
    assert len(found) > 30
    private = [
        f"{module}.{name}"
        for module, name in sorted(found)
        if id(getattr(import_module(module), name, None)) not in things
    ]
    assert private == [], "put these names in tools/public_names.py, or do without them"


def test_there_is_a_kind_for_every_registry_and_every_part_of_the_kit() -> None:
    # what carries plans to workers, and what cuts an axis, are rarely written by others
    rare = {"executors", "partitions"}
    assert {k.registry for k in KINDS.values()} - {""} == set(registries.all()) - rare
    assert {k.option for k in KINDS.values()} - {""} == {k.option for k in TESTED}
    for kind in KINDS.values():
        for tested in TESTED:
            assert (kind.registry == tested.registry) <= (kind.option == tested.option)


def test_the_sampler_names_every_wish_that_it_leaves_out() -> None:
    template = (TEMPLATES / "sampler" / "sampler.py.tmpl").read_text()
    found = re.search(r"NOT_DONE = (\(.*?\n\))", template, re.DOTALL)
    assert found is not None
    example = (ROOT / "examples" / "one_file" / "top_n_sigma_sampler.py").read_text()
    assert f"NOT_DONE = {found[1]}" in example
    fields = {field.name for field in dataclasses.fields(SamplingParams)}
    assert set(ast.literal_eval(found[1])) <= fields
