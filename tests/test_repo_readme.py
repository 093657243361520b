"""The README shows code that runs, and output that comes out."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from core.run import main
from core.testing.command import run_kit
from tests.tiny import save_tiny

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"), eos=256)


def block(beginning: str) -> str:
    (found,) = [text for text in BLOCKS if text.startswith(beginning)]
    return found


def test_the_python_example_runs(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = block("from core import LLM").replace("Qwen/Qwen3-0.6B", str(checkpoint))

    exec(code.replace("max_model_len=1024", 'max_model_len=256, device="cpu"'), {})

    assert re.match(r"The sea is -> (.|\n)*A good test -> ", capsys.readouterr().out)


@pytest.fixture
def floor(tmp_path: Path) -> Path:
    """The README's plugin, as a file."""
    path = tmp_path / "floor.py"
    path.write_text(block('"""floor.py'))
    return path


def test_the_plugin_does_what_it_says(
    checkpoint: Path, floor: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = [f"model.path={checkpoint}", "model.device=cpu", "cache.memory=16MiB"]

    def text(*words: str) -> str:
        params = "run.params={max_tokens: 24, temperature: 1.0, seed: 5}"
        assert main([str(ROOT / "configs" / "qwen3.yaml"), *place, params, *words]) == 0
        return capsys.readouterr().out

    def cut(share: float) -> str:
        words = f"sampler.processors=[{{use: floor, share: {share}}}]"
        return text("-p", str(floor), words)

    greedy = text("run.params={max_tokens: 24, temperature: 0.0}")
    assert cut(0.9999) == greedy
    assert cut(0.001) != greedy


def test_the_command_of_the_plugin_works_as_it_stands(
    floor: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (command,) = re.findall(r"^    python -m core\.run (.*-p \./floor\.py.*)$", README, re.M)
    (floor.parent / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(floor.parent)

    assert main([*shlex.split(command), "run.params.max_tokens=3"]) == 0

    assert capsys.readouterr().out.strip()


def test_the_kit_finds_nothing_wrong_with_the_plugin(floor: Path) -> None:
    """Beside whatever requests ask for; its purpose is another distribution."""
    sampler = "--sampler={use: default, processors: [{use: floor, share: 0.2}]}"

    run_kit("--load", str(floor), sampler, "-k", "not distribution")


def test_the_plan_is_the_one_that_is_used() -> None:
    assert block("plan = {") in (ROOT / "models" / "qwen3" / "plan.py").read_text()


def test_the_table_is_the_one_that_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(ROOT / "configs" / "toy-tp2.yaml"), "run.rank=1"]) == 0
    printed = {tuple(line.split()) for line in capsys.readouterr().out.splitlines()}

    shown = [line.split() for line in README.splitlines() if line.startswith("    model.layers.")]
    assert len(shown) == 3
    assert {(*line, "50.0%") for line in shown} <= printed


def test_the_demo_goes_on_as_the_readme_says(capsys: pytest.CaptureFixture[str]) -> None:
    shown = re.search(r"It goes on:\n\n((?:    .*\n|\n)+)", README)
    assert shown

    assert main([str(ROOT / "configs" / "qwen3-tiny.yaml")]) == 0

    written = " ".join(capsys.readouterr().out.split())
    assert written.startswith(" ".join(shown[1].split()))


@pytest.mark.parametrize("name", sorted(p.stem for p in (ROOT / "configs").glob("*.yaml")))
def test_a_shipped_configuration_reads_without_mistakes(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(ROOT / "configs" / f"{name}.yaml"), "model.device=cpu", "--print-config"]) == 0

    assert "path:" in capsys.readouterr().out
