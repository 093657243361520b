"""The ways to measure: each reads the settings that the table says, and the others are refused."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from core.errors import UserError
from core.run import main
from core.settings import load
from plugins.apps.bench.app import Bench
from plugins.apps.bench.ways import OF, READ, check_read
from tests.plugins.apps.answering import answering
from tests.tiny import save_tiny

CONFIG = str(Path(__file__).resolve().parents[3] / "configs" / "qwen3-bench.yaml")
NAMES = [f.name for f in fields(Bench.Options)]
NEVER_WRITTEN = str(Path(tempfile.gettempdir()) / "never-written")
OTHERS: dict[str, Any] = {  # than the defaults, each by itself a value that could be read
    "workloads": ["decode:2:8:4:1"],
    "repeat": 2,
    "peer": "transformers",
    "continuous": False,
    "host": True,
    "out": NEVER_WRITTEN,
    "trace": NEVER_WRITTEN,
    "trace_steps": 3,
    "url": "http://127.0.0.1:1",
    "concurrency": [2],
    "rate": [500.0],
    "burstiness": 0.5,
    "rounds": 1,
    "slo": {"ttft": 9e3},
    "plot": NEVER_WRITTEN,
    "model": "tiny",
    "label": "it",
    "vocabulary": 100,
    "salt": False,
    "seed": 3,
    "api_key_env": "PATH",
}


def whole(way: str) -> dict[str, Any]:
    """Everything that a way reads, set to something."""
    return {name: OTHERS[name] for name in READ[way]}


def test_every_setting_belongs_to_a_way() -> None:
    assert {name for names in READ.values() for name in names} == OTHERS.keys() == {*NAMES}


@pytest.mark.parametrize("way", READ)
def test_what_a_way_reads_is_taken(way: str) -> None:
    Bench(Bench.Options(**whole(way))).check()


def unread() -> Iterator[tuple[str, str]]:
    """Every way with each setting that it does not read, and that asks for no way before it."""
    for way in READ:
        earlier = list(READ)[: list(READ).index(way)]
        yield from ((way, name) for name in NAMES if name not in READ[way] and name not in earlier)


@pytest.mark.parametrize(("way", "name"), list(unread()))
def test_what_a_way_does_not_read_is_refused(way: str, name: str) -> None:
    asking = {way: OTHERS[way]} if way else {}

    with pytest.raises(UserError, match=rf"^run\.{name} is .*run\.{way}") as told:
        check_read(Bench.Options(**asking, **{name: OTHERS[name]}))

    assert len(str(told.value).splitlines()) == 1


@pytest.mark.parametrize("name", OF)
def test_what_says_more_of_nothing_is_refused(name: str) -> None:
    way = next(way for way in READ if name in READ[way])
    without = {other: value for other, value in whole(way).items() if other != OF[name]}

    with pytest.raises(UserError, match=rf"run\.{name} is read with run\.{OF[name]} alone"):
        check_read(Bench.Options(**without))


def test_all_are_told_at_once() -> None:
    asked = Bench.Options(concurrency=[4], plot="/none/plot.svg", repeat=0, host=True)

    with pytest.raises(UserError) as told:
        Bench(asked).check()

    assert [line.split(" ")[0].rstrip(":") for line in str(told.value).splitlines()] == [
        "run.repeat", "run.concurrency", "run.plot", "run.plot", "run.repeat",
    ]  # fmt: skip


def test_the_command_line_is_told_before_the_model_is_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [CONFIG, "model.path=/nowhere", "run.concurrency=[4]", "run.slo={ttft: 200}"]

    assert main(words) == 2

    said = capsys.readouterr().err
    assert "run.concurrency is read with run.url alone" in said
    assert "run.slo is read with run.url alone" in said
    assert "nowhere" not in said


@contextmanager
def noting_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """The names of the options that are read within the block."""
    read: set[str] = set()

    def get(self: Any, name: str) -> Any:
        if name in NAMES:
            read.add(name)
        return object.__getattribute__(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(Bench.Options, "__getattribute__", get, raising=False)
        yield read


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize("way", READ)
def test_the_table_is_what_is_read(
    way: str,
    checkpoint: Path,
    device: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("plugins.apps.bench.host.show_host_costs", lambda config: 0)
    small = ["model.weights=auto", "model.max_length=128", "cache.memory=16MiB"]
    config = load(CONFIG, [*small, f"model.path={checkpoint}", f"model.device={device}"])
    asked = whole(way)
    for name in {"out", "plot", "trace"} & asked.keys():
        asked[name] = str(tmp_path / name)
    with answering() as url, noting_reads(monkeypatch) as read:
        if way == "url":
            asked["url"] = url
        assert Bench(Bench.Options(**asked)).measure(config) == 0

    asks = {name for name in READ if name} - {way}  # looked at to find the way
    assert read - asks == {*READ[way]} - asks
    if "out" in asked:
        lines = (tmp_path / "out").read_text()
        assert lines == capsys.readouterr().out
        assert {json.loads(line)["name"] for line in lines.splitlines()} == {"decode:2:8:4:1"}
    for name in {"plot", "trace"} & asked.keys():
        assert (tmp_path / name).read_text().strip()[:1] in ("<", "{")
