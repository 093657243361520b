"""Models of the hub: what is fetched when, with the real client and a hub on this machine."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.hub import COMMIT, Hub, serving
from tests.tiny import save_tiny

NAME = "An-Owner/A.Model-1"
WORDS = (f"model.path={NAME}", "model.device=cpu", "run.prompt=Hello", "run.params={max_tokens: 4}")
GENERATE = ("configs/qwen3.yaml", *WORDS)
PLAN = ("configs/qwen3.yaml", f"model.path={NAME}", "model.device=cpu", "run=plan")
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture
def hub(checkpoint: Path, tmp_path: Path) -> Iterator[Hub]:
    folder = shutil.copytree(checkpoint, tmp_path / "model")
    with serving(Hub({NAME: folder}, tmp_path / "home")) as hub:
        yield hub


def split(folder: Path) -> list[str]:
    """Make two files with an index of a model's one; their names."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    where = {tensor: names[number % 2] for number, tensor in enumerate(tensors)}
    for name in names:
        save_file({t: tensors[t] for t, file in where.items() if file == name}, folder / name)
    index = {"metadata": {}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return names


def test_a_model_is_fetched_once_and_then_needs_no_hub(hub: Hub, checkpoint: Path) -> None:
    local = hub.run("configs/qwen3.yaml", f"model.path={checkpoint}", *WORDS[1:])
    first = hub.run_apart(*GENERATE)
    assert (first.status, first.out) == (0, local.out), first.err
    assert hub.bytes_of(WEIGHTS) == (checkpoint / WEIGHTS).stat().st_size
    hub.asked.clear()
    second = hub.run(*GENERATE)
    assert (second.status, second.out) == (0, local.out), second.err
    assert hub.asked == []


@pytest.mark.parametrize("files", ["one", "two"])
def test_a_plan_needs_headers_alone(hub: Hub, files: str) -> None:
    folder = hub.models[NAME]
    sizes = {name: (folder / name).stat().st_size for name in [WEIGHTS]}
    if files == "two":
        sizes = {name: (folder / name).stat().st_size for name in split(folder)}
    here = hub.run("configs/qwen3.yaml", f"model.path={folder}", *PLAN[2:])
    found = hub.run(*PLAN)
    assert (found.status, found.out) == (0, here.out), found.err
    assert "embed_tokens" in found.out
    for name, size in sizes.items():
        assert 0 < hub.bytes_of(name) <= 100_001 < size  # what the client asks for at first


def test_a_plan_finds_in_headers_what_does_not_fit(hub: Hub) -> None:
    file = hub.models[NAME] / WEIGHTS
    tensors = load_file(file)
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1].clone()
    save_file(tensors, file)
    found = hub.run(*PLAN)
    assert found.status == 2
    assert "P9 checkpoint tensor model.norm.weight is (63,)" in found.err


def test_random_weights_fetch_none(hub: Hub) -> None:
    found = hub.run(*GENERATE, "model.weights=dummy")
    assert found.status == 0, found.err
    assert hub.bytes_of(".safetensors") == 0
    assert hub.bytes_of("tokenizer.json") > 0


def test_a_mistake_is_told_before_weights_are_fetched(hub: Hub) -> None:
    found = hub.run(*GENERATE, "parallel.tensor=9")
    assert found.status == 2
    assert "num_attention_heads=4" in found.err
    assert hub.bytes_of(".safetensors") == 0


def test_two_ranks_read_one_snapshot(hub: Hub, checkpoint: Path) -> None:
    alone = hub.run("configs/qwen3.yaml", f"model.path={checkpoint}", *WORDS[1:])
    for weights in ("dummy", "auto"):
        hub.asked.clear()
        found = hub.run(*GENERATE, "parallel.tensor=2", f"model.weights={weights}")
        assert found.status == 0, found.err
        assert weights == "dummy" or found.out == alone.out
        assert sum("/revision/" in line for line in hub.asked) == 1


def test_what_another_program_left_in_parts_is_completed(hub: Hub, checkpoint: Path) -> None:
    """Such as one that wanted a configuration and no more."""
    cache = hub.home / "hub" / f"models--{NAME.replace('/', '--')}"
    (cache / "snapshots" / COMMIT).mkdir(parents=True)
    shutil.copy(checkpoint / "config.json", cache / "snapshots" / COMMIT)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(COMMIT)
    found = hub.run(*GENERATE)
    assert found.status == 0, found.err
    assert hub.bytes_of(WEIGHTS) > 0


def test_what_broke_off_is_told_and_can_be_repeated(hub: Hub) -> None:
    names = split(hub.models[NAME])
    hub.withheld = {names[1]}
    found = hub.run(*GENERATE)
    assert found.status == 2
    assert f"the hub did not give the weights of {NAME}" in found.err
    assert "Traceback" not in found.err
    hub.withheld = set()
    again = hub.run(*GENERATE)
    assert again.status == 0, again.err


def test_a_revision_is_asked_for(hub: Hub) -> None:
    found = hub.run(*GENERATE, "model.revision=v1")
    assert found.status == 0, found.err
    found = hub.run(*GENERATE, "model.revision=v9")
    assert found.status == 2
    assert "the hub did not give such a model at revision v9 (RevisionNotFound" in found.err


def test_a_folder_has_no_revision(hub: Hub, checkpoint: Path) -> None:
    found = hub.run("configs/qwen3.yaml", f"model.path={checkpoint}", "model.revision=v1")
    assert found.status == 2
    assert "is not of the hub: it has no revisions" in found.err


@pytest.mark.parametrize("words", [GENERATE, PLAN])
def test_a_model_that_is_not_there_is_told_once(hub: Hub, words: tuple[str, ...]) -> None:
    other = [word.replace(NAME, "nobody/nothing") for word in words]
    found = hub.run(*other)
    assert found.status == 2
    assert found.err.count("the hub did not give such a model (RepositoryNotFoundError") == 1
    assert hub.asked == ["GET /api/models/nobody/nothing/revision/main"]


def test_a_hub_that_does_not_answer_is_asked_once(tmp_path: Path) -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    calls: list[object] = []

    def hang_up() -> None:
        while True:
            try:
                connection, _ = silent.accept()
            except OSError:
                return
            calls.append(connection)
            connection.close()

    thread = threading.Thread(target=hang_up, daemon=True)
    thread.start()
    hub = Hub({}, tmp_path / "home", url=f"http://127.0.0.1:{silent.getsockname()[1]}")
    found = hub.run(*GENERATE)
    silent.shutdown(socket.SHUT_RDWR)
    silent.close()
    thread.join()
    assert found.status == 2
    assert found.err.count("the hub did not give such a model") == 1
    assert len(calls) <= 3  # the client may try one request more than once
