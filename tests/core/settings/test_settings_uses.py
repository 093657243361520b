"""What a Config is used for: `auto`, arguments of Python, pickling, printing."""

from __future__ import annotations

import copy
import pickle
from dataclasses import asdict

import pytest

from core.config import Config
from core.errors import UserError
from core.settings import Argument, auto, from_arguments, load
from core.settings.ranges import parse_bytes
from core.settings.yaml_text import dump

pytestmark = pytest.mark.usefixtures("parts")


def test_auto_passes_over_what_is_missing(parts, monkeypatch) -> None:
    parts.attention.register("flash", "a:B", needs=("plait_absent",))
    monkeypatch.setattr(auto, "device", lambda asked: ("cuda:1", ""))
    config = load(None, ["model.path=x", "executor=local"])
    assert config.attention.use == "sdpa"
    assert config.origins["attention.use"] == (
        "auto: on cuda; triton is not registered; flash needs plait_absent"
    )


def test_auto_takes_torchrun_when_it_started_us(parts, monkeypatch) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "h")):
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="found no executor for cpu: torchrun is not registered"):
        load(None, ["model.path=x"])
    parts.executors.register("torchrun", parts.executors.get("local"))
    config = load(None, ["model.path=x"])
    assert (config.executor.use, config.origins["executor.use"]) == (
        "torchrun",
        "auto: for torchrun",
    )


def test_auto_of_the_device_asks_torch(monkeypatch) -> None:
    monkeypatch.undo()
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert auto.device("auto") == ("cuda", "auto: torch finds a CUDA device")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert auto.device("auto")[0] == "cpu"
    assert auto.device("cuda:3") == ("cuda:3", "")


def test_arguments_are_settings_and_mistakes_name_them(tmp_path) -> None:
    config = from_arguments(
        [
            Argument("model.path", tmp_path, "argument model"),
            Argument("sampler", {"use": "min-p", "steps": 7}, "argument sampler"),
            Argument("scheduler.use", "fcfs", "argument scheduling_policy"),
            Argument("cache", {"pages": 4}, "argument cache"),
            Argument("cache.pages", 5, "argument num_gpu_blocks_override"),
        ]
    )
    assert config.model.path == str(tmp_path)
    assert config.sampler.options.steps == 7
    assert config.cache.pages == 5
    with pytest.raises(UserError) as caught:
        from_arguments(
            [
                Argument("model.path", 3, "argument model"),
                Argument("model.max_length", "many", "argument max_model_len"),
                Argument("cache", {"pagse": 4}, "argument cache"),
                Argument("parallel.tensor", object(), "argument tensor_parallel_size"),
            ]
        )
    lines = str(caught.value).splitlines()
    assert lines[0] == "argument model: model.path: must be text, not 3."
    assert lines[1].startswith("argument max_model_len: model.max_length: must be a whole number")
    assert lines[3].startswith("argument cache: cache.pagse: there is no such key. Did you mean")
    assert lines[2].startswith("argument tensor_parallel_size: parallel.tensor: must be a whole")


def test_a_config_survives_pickling_and_copying() -> None:
    config = load(None, ["model.path=x", "sampler={use: min-p, steps: 9}"])
    for other in (pickle.loads(pickle.dumps(config)), copy.deepcopy(config)):
        assert isinstance(other, Config)
        assert other == config
        assert other.sampler.options.steps == 9


def test_a_printed_configuration_gives_itself_again(write) -> None:
    write(
        "a.yaml",
        "model: {path: 'a: b', config: {rope: {factor: 2.0}}, ignore_config: [x, 'y: z']}\n"
        'parallel: {plan: {"layers.*.q": colwise}}\n'
        "sampler: {use: min-p, floor: 0.25}\n"
        r'run: {use: recite, text: "two\nlines \\${not} \\\\\\${é", words: {deep: {x: [1, null]}}}',
    )
    config = load("a.yaml", ["cache.memory=2GiB"])
    assert config.run.options.text == "two\nlines ${not} \\${é"
    text = dump(config)
    write("b.yaml", text)
    again = load("b.yaml")
    first, second = asdict(config), asdict(again)
    first.pop("origins")
    second.pop("origins")
    assert first == second
    assert "  use: sdpa  # auto: on cpu\n" in text
    assert "  floor: 0.25  # a.yaml:3\n" in text
    assert "  memory: 2GiB  # command line\n" in text
    assert "  seed: 0  # default\n" in text


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GiB", 2**32), ("512 MiB", 2**29), ("1.5GB", 1500000000), ("7", 7), ("1 kib", 1024)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "4 apples", "1e9"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UserError, match="is not a size"):
        parse_bytes(text)
