"""`python -m core.new_plugin`: what it writes is right at once, and what it refuses it names."""

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
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from core import SamplingParams, __version__
from core.new_plugin import main
from core.registry import registries
from core.scaffold.kinds import COMMON, KINDS, TEMPLATES
from core.scaffold.names import names_for
from core.scaffold.writing import compatible, package
from core.testing.command import run_kit
from core.testing.plugin import KINDS as TESTED
from tests.thirdparty.installed import ROOT

RULES = ["--select", "E,F,I,UP,B,SIM,RUF,PT", "--ignore", "RUF001,RUF002,RUF003"]
FEWER = [*RULES, "--extend-ignore", "E501"]
TOGETHER = ("sampler", "attention", "kernels", "sharding", "runner")  # those that share a run


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


# what is written


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


# names


@pytest.mark.parametrize(
    ("given", "kind", "names"),
    [
        ("my-sampler", "sampler", ("my-sampler", "my_sampler", "my-sampler", "MySampler")),
        ("plait-min-p", "sampler", ("min-p", "plait_min_p", "min-p", "MinP")),
        ("Plait.Min_P", "sampler", ("min-p", "plait_min_p", "min-p", "MinP")),
        ("plait-sampler", "sampler", ("sampler", "plait_sampler", "sampler", "SamplerSampler")),
        ("plait-exception", "app", ("exception", "plait_exception", "exception", "ExceptionApp")),
        ("a", "runner", ("a", "a", "a", "A")),
        ("tiny-x2", "model", ("tiny-x2", "tiny_x2", "TinyX2ForCausalLM", "TinyX2ForCausalLM")),
    ],
)
def test_names_follow_from_the_packages(given: str, kind: str, names: tuple[str, ...]) -> None:
    found = names_for(given, KINDS[kind], "from core.interfaces import Sampler")
    assert found.distribution == given
    assert (found.plugin, found.module, found.component, found.cls) == names


@pytest.mark.parametrize(
    ("version", "wanted", "fits", "not_"),
    [
        ("0.1.0", ">=0.1,<0.2", ["0.1.0", "0.1.7"], ["0.0.9", "0.2.0", "1.0"]),
        ("0.10.3", ">=0.10,<0.11", ["0.10.0"], ["0.11.0"]),
        ("1.4.2", ">=1.4,<2", ["1.4.0", "1.9"], ["1.3", "2.0"]),
        ("0.2.0.dev3", ">=0.2.0.dev3,<0.3", ["0.2.0.dev3", "0.2.0"], ["0.2.0.dev2", "0.3"]),
        ("0.2.0rc1+cu13", ">=0.2.0rc1,<0.3", ["0.2.0rc1+cu13", "0.2.1"], ["0.3.0"]),
    ],
)
def test_the_range_is_that_of_compatible_versions(
    version: str, wanted: str, fits: list[str], not_: list[str]
) -> None:
    assert compatible(version) == wanted
    specifiers = SpecifierSet(wanted)
    assert [v for v in [version, *fits] if not specifiers.contains(v, prereleases=True)] == []
    assert [v for v in not_ if specifiers.contains(v, prereleases=True)] == []


# what is refused


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "name the package: python -m core.new_plugin NAME --kind KIND"),
        ("x", "--kind is missing. Kinds: sampler, processor, "),
        ("x --kind samper", "there is no kind 'samper'. Did you mean 'sampler'? Kinds: "),
        ("x --kind app --frob", "unrecognized arguments: --frob. See --help."),
        ("a/b --kind app", "'a/b' is no name of a package"),
        ("x- --kind app", "'x-' is no name of a package"),
        ("../x --kind app", "is no name of a package"),
        ("ä --kind app", "is no name of a package"),
        ("3d --kind app", "'3d' would have a module '3d', which Python cannot import by name."),
        ("lambda --kind app", "module 'lambda', which Python cannot import"),
        ("plait-3 --kind app", "which Python cannot import by name. Begin with a letter"),
        ("plait-auto --kind app", "in a configuration that word means something else"),
        ("plait --kind app", "there is a package 'plait' already"),
        ("tests --kind app", "there is a package 'tests' already"),
        ("Torch --kind app", "there is a package 'Torch' already"),
        ("email --kind app", "there is a Python module 'email' already"),
        ("core --kind app", "there is a Python module 'core' already"),
        ("default --kind sampler", "there is a sampler 'default' already, of plugin 'sampling'"),
        ("plait-fcfs --kind scheduler", "there is a scheduler 'fcfs' already, of plugin"),
        ("qwen3 --kind model", "there is a model 'Qwen3ForCausalLM' already"),
        ("scheduling --kind observer", "there is a plugin 'scheduling' (built in) already"),
    ],
)
def test_a_mistake_is_a_sentence_and_leaves_nothing(
    words: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words.split(), "--into", str(tmp_path / "here")]) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert err.count("\n") == 1
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--kind", "app", "--into", str(tmp_path)]
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    for name in ("folder", "file", "nowhere"):
        assert main([name, *words]) == 2
        assert f"{tmp_path / name} is there already. Choose another" in capsys.readouterr().err
    assert main(["x", "--kind", "app", "--into", str(tmp_path / "file")]) == 2
    assert "cannot be written: " in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "file", "nowhere"}


def test_it_says_where_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plait-min-p", "--kind", "sampler"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("plait-min-p has the sampler 'min-p':\n    pyproject.toml\n")
    assert "    cd plait-min-p\n    python -m pytest\n" in out
    assert [p.name for p in tmp_path.iterdir()] == ["plait-min-p"]
    written = {p.relative_to(tmp_path / "plait-min-p").as_posix() for p in tmp_path.rglob("*.*")}
    assert {line.strip() for line in out.splitlines() if "." in line.split("/")[-1][1:]} >= {
        name for name in written if name.endswith(".py")
    }


def test_help_knows_every_kind_and_nothing_imports_torch(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from core.new_plugin import main\n"
        "assert main(['--help']) == 0\n"
        "assert main(['x-y', '--kind', 'model', '--into', sys.argv[1]]) == 0\n"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for kind in KINDS.values():
        assert re.search(rf"^  {kind.name} +{re.escape(kind.word)}; begins as: \w", done.stdout,
                         re.MULTILINE)  # fmt: skip
    assert all(len(line) <= 100 for line in done.stdout.splitlines())
