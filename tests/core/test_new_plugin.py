"""`python -m core.new_plugin`: names, the range of versions, and what it refuses in a sentence."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from core.new_plugin import main
from core.scaffold.kinds import KINDS
from core.scaffold.names import names_for
from core.scaffold.writing import compatible
from tests.thirdparty.installed import ROOT


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
        (f"{'x' * 300} --kind app", "xxx... has 300 letters. Take a name of 100 at most."),
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
    install = 'python -m pip install -e ".[test]"'
    assert f"    cd plait-min-p\n    {install}\n    python -m pytest\n" in out
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
    lines = [line for line in done.stdout.splitlines() if str(tmp_path) not in line]
    assert all(len(line) <= 100 for line in lines)
