"""New packages built, installed, run and blocked in an environment of their own; the tutorial."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from core.scaffold.kinds import KINDS
from tests.thirdparty.installed import ROOT

pytest.importorskip("build")
pytestmark = pytest.mark.slow

TUTORIAL = ROOT / "docs" / "tutorial.md"
SHIPPED = ("core", "plugins", "models", "configs")


@dataclass(frozen=True)
class Environment:
    """A virtual environment with Plait's wheel; torch and the like are those of the tests."""

    folder: Path

    def run(self, *command: str, cwd: Path, status: int = 0) -> str:
        """Run a command in it, as in an activated one. -> what it wrote."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST"))}
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**clean, "PATH": path, "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0",
                 "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        )  # fmt: skip
        assert done.returncode == status, done.stdout
        return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plait's own wheel, built from a copy of the tree."""
    tree = tmp_path_factory.mktemp("plait")
    for name in SHIPPED:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation"],
        cwd=tree, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    (built,) = (tree / "dist").glob("*.whl")
    return built


@pytest.fixture
def environment(wheel: Path, tmp_path: Path) -> Environment:
    folder = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (own,) = folder.glob("lib/python*/site-packages")
    others = [p for p in sys.path if Path(p).name in ("site-packages", "dist-packages")]
    (own / "others.pth").write_text("\n".join(others))
    made = Environment(folder)
    # an editable Plait beside the tests' torch must not be taken for this one
    words = ["-m", "pip", "install", "-q", "--no-deps", "--force-reinstall", str(wheel)]
    made.run("python", *words, cwd=tmp_path)
    return made


CHOOSING = """\
import contextlib, io, json, sys
from core.run import main
ran = {}
for kind, words in json.loads(sys.argv[1]).items():
    for what, more in (("chosen", []), ("blocked", ["-p", f"no:my-{kind}"])):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main([f"{kind}.yaml", *words, *more])
        ran[f"{kind} {what}"] = [status, out.getvalue() + err.getvalue()]
json.dump(ran, open("ran.json", "w"))
"""
LISTING = """\
import sys
from core.run import main
for name in sys.argv[1:]:
    main(["--list-plugins", "-p", f"no:{name}"])
    print("=====")
"""
BASE = """\
model: {path: tiny, device: cpu}
cache: {page_size: 16, pages: 16}
run: {use: generate, prompt: "The Mole", params: {max_tokens: 4}}
"""


def test_every_kind_is_built_installed_run_and_blocked(
    environment: Environment, tmp_path: Path
) -> None:
    for kind in KINDS:
        environment.run(
            "python", "-m", "core.new_plugin", f"my-{kind}", "--kind", kind, cwd=tmp_path
        )
    wheels = build([tmp_path / f"my-{kind}" for kind in KINDS], environment)
    # without --no-deps: pip sees that the range fits the Plait that is there
    environment.run("python", "-m", "pip", "install", "-q", *map(str, wheels), cwd=tmp_path)

    listed = environment.run("python", "-m", "core.run", "--list-plugins", cwd=tmp_path)
    for kind in KINDS.values():
        assert re.search(rf"^my-{kind.name} +my-{kind.name} 0.1.0 +ready$", listed, re.M), listed
        if kind.registry:
            row = rf"^{kind.word} +\S+ +my-{kind.name} 0.1.0 +ready +{re.escape(kind.summary)}$"
            assert re.search(row, listed, re.M), listed

    demo = environment.run(
        "python", "-m", "core.run", str(ROOT / "configs" / "qwen3-tiny.yaml"), "-p", "my-observer",
        "attention=my-attention", "kernels=my-kernels", "scheduler=my-scheduler",
        "runner=my-runner", "sampler.processors=[{use: my-processor, n: 3}]",
        "run.params.max_tokens=8", cwd=tmp_path,
    )  # fmt: skip
    assert "attention my-attention, kernels my-kernels, runner my-runner" in demo
    assert re.search(r"INFO: \d+ steps computed \d+ tokens in", demo)

    check_blocking(environment, tmp_path)
    check_choosing(environment, tmp_path)


def build(folders: Sequence[Path], environment: Environment) -> list[Path]:
    """The wheels of packages, made by `python -m build`."""

    def one(folder: Path) -> Path:
        environment.run("python", "-m", "build", "--wheel", "--no-isolation", cwd=folder)
        (made,) = (folder / "dist").glob("*.whl")
        return made

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, folders))


def check_blocking(environment: Environment, folder: Path) -> None:
    """Each package can be left out, and nothing of it is there then."""
    names = [f"my-{kind}" for kind in KINDS]
    shown = environment.run("python", "-c", LISTING, *names, cwd=folder).split("=====\n")
    for name, text in zip(names, shown[:-1], strict=True):
        lines = [line for line in text.splitlines() if f"{name} 0.1.0" in line]
        assert len(lines) == 1, text
        assert re.fullmatch(rf"{name} +{name} 0.1.0 +blocked", lines[0])


def check_choosing(environment: Environment, folder: Path) -> None:
    """What each README says chooses its component; without the package it is missed by name."""
    (folder / "base.yaml").write_text(BASE)
    asked: dict[str, list[str]] = {}
    for kind in KINDS:
        if kind in ("model", "source"):  # a checkpoint chooses these
            continue
        readme = (folder / f"my-{kind}" / "README.md").read_text()
        (use,) = re.findall(r"```yaml\n(.*?)```", readme, re.DOTALL)
        (folder / f"{kind}.yaml").write_text(f"extends: base.yaml\n{use}")
        asked[kind] = []
    environment.run("python", "-c", CHOOSING, json.dumps(asked), cwd=folder)
    ran = json.loads((folder / "ran.json").read_text())
    for kind in asked:
        status, text = ran[f"{kind} chosen"]
        assert status == 0, text
        status, text = ran[f"{kind} blocked"]
        if kind == "observer":  # nothing is missing when nobody watches
            assert status == 0, text
        else:
            assert status == 2, text
            assert f"no {KINDS[kind].word} is called 'my-{kind}'" in text


# the tutorial

BLOCK = re.compile(r"^```(\w+)(?: status=(\d+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_tutorial_does_what_it_says(environment: Environment, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    shown, kinds = "", []
    for kind, status, text in BLOCK.findall(TUTORIAL.read_text(encoding="utf-8")):
        kinds.append(kind)
        if kind in ("python", "yaml"):
            name = re.match(r'(?:"""|# )([\w./-]+): ', text)
            assert name is not None, text
            (work / name[1]).write_text(text)
        elif kind == "sh":
            shown = environment.run("bash", "-euc", text, cwd=work, status=int(status or 0))
        else:
            assert kind == "text"
            for line in text.splitlines():
                assert " ".join(line.split()) in " ".join(shown.split()), shown
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "python": 2, "yaml": 2, "sh": 10, "text": 3
    }  # fmt: skip
    # every command but those that publish stands in a block that was run
    prose = BLOCK.sub("", TUTORIAL.read_text(encoding="utf-8"))
    assert re.findall(r"^    (?=python)(.*)$", prose, re.MULTILINE) == [
        "python -m pip install twine",
        "python -m twine upload plait-calm/dist/*",
    ]
