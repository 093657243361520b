"""Every option of an app that names a file to write: refused early, and told of when it fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import pytest

from core.registry import registries
from core.run import main
from tests.plugins.apps.answering import answering
from tests.tiny import save_tiny

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
BENCH = ["qwen3-bench", "run.workloads=[decode:1:4:2:1]", "model.weights=auto"]
GENERATE = ["qwen3", "run.prompt=x", "run.params={max_tokens: 2}"]
PLAN = ["qwen3", "run=plan"]
WRITTEN = [
    ("generate", "out", GENERATE),
    ("bench", "out", BENCH),
    ("bench", "trace", [*BENCH, "run.trace_steps=1"]),
    ("bench", "plot", [*BENCH, "run.url=URL"]),
    ("bench", "out", [*BENCH, "run.url=URL"]),
    ("plan", "json", PLAN),
    ("plan", "html", PLAN),
    ("plan", "svg", PLAN),
]
READ = {("generate", "prompts_file")}
HERE = {"generate", "chat", "bench", "plan"}


def run(words: Sequence[str], option: str, path: str, checkpoint: Path) -> int:
    config, *others = words
    place = [f"model.path={checkpoint}", "model.device=cpu", "cache.memory=16MiB"]
    with answering() as url:
        asked = [word.replace("URL", url) for word in others]
        return main(
            [str(CONFIGS / f"{config}.yaml"), *place, "model.max_length=128", *asked,
             f"run.{option}={path}"]
        )  # fmt: skip


def test_all_of_them_are_here() -> None:
    found = {
        (app, field.name)
        for app in HERE
        for field in fields(registries.apps.get(app).Options)
        if "file" in field.metadata["help"].lower().split()
    }

    assert found == {(app, option) for app, option, _ in WRITTEN} | READ


@pytest.mark.parametrize(("app", "option", "words"), WRITTEN)
def test_a_place_where_nothing_can_be_written_is_told_first(
    app: str, option: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = tmp_path / "none" / "file"

    assert run(words, option, str(nowhere), checkpoint=tmp_path / "no-model") == 2

    said = capsys.readouterr()
    assert said.err == (
        f"run.{option}: {nowhere} cannot be written: No such file or directory. "
        "Choose another place.\n"
    )
    assert said.out == ""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full disk to offer")
@pytest.mark.parametrize(("app", "option", "words"), WRITTEN)
def test_a_disk_that_fills_up_is_told_of_by_the_settings_name(
    app: str,
    option: str,
    words: list[str],
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    full = tmp_path / "full"
    full.symlink_to("/dev/full")  # who puts a file in its place does no harm

    assert run(words, option, str(full), checkpoint) == 2

    said = capsys.readouterr().err
    assert f"run.{option}: {full} cannot be written: No space left on device" in said
    assert "Traceback" not in said
    assert full.is_symlink()
