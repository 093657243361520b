"""A checkpoint may be one file: a plugin gives its configuration, weights and tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from core import LLM, SamplingParams
from core.checkpoint import find, open_checkpoint
from core.config import ModelConfig
from core.errors import UserError
from core.plugins import load
from tests.core import single_file_format
from tests.tiny import IM_END, save_tiny

PLUGIN = single_file_format.__file__
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
SETTINGS = {"device": "cpu", "plugins": [PLUGIN], "cache": {"pages": 16, "page_size": 16}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("folder"), eos=IM_END)


@pytest.fixture(scope="module")
def file(folder, tmp_path_factory) -> Path:
    return single_file_format.pack(folder, tmp_path_factory.mktemp("file") / "tiny.whole")


@pytest.fixture(autouse=True)
def loaded():
    load([PLUGIN])
    yield
    load()


def answers(model: Path, **settings) -> list[list[int]]:
    with LLM(model, **SETTINGS, **settings) as llm:
        texts = llm.generate(["The wind", "Once upon a time"], GREEDY, use_tqdm=False)
        chat = llm.chat([{"role": "user", "content": "Hello"}], GREEDY, use_tqdm=False)
        assert llm.engine.eos_ids == {IM_END}
        return [output.outputs[0].token_ids for output in texts + chat]


@pytest.mark.parametrize("ranks", [1, 2])
def test_it_answers_as_the_folder_that_it_was_made_of(folder, file, ranks) -> None:
    assert answers(file, tensor_parallel_size=ranks) == answers(folder)


def test_it_is_found_by_the_name_that_a_plugin_gives_it(file, monkeypatch) -> None:
    monkeypatch.chdir(file.parent)
    assert find("tiny") == Path("tiny.whole")


def test_config_json_in_a_folder_is_not_asked_of_anybody(folder, monkeypatch) -> None:
    monkeypatch.setattr("core.plugins.offer", lambda *_, **__: pytest.fail("it was asked"))
    assert open_checkpoint(ModelConfig(path=str(folder))).config_file == folder / "config.json"


def test_a_file_without_its_configuration_is_read_by_nobody(folder, tmp_path) -> None:
    bare = tmp_path / "bare.whole"
    bare.write_bytes((folder / "model.safetensors").read_bytes())
    with pytest.raises(UserError, match=r"bare\.whole is a file that no plugin reads"):
        open_checkpoint(ModelConfig(path=str(bare)))


def test_what_the_plugin_says_of_a_broken_file_is_told(tmp_path) -> None:
    broken = tmp_path / "broken.whole"
    broken.write_bytes(b"")
    with pytest.raises(UserError, match=r"broken\.whole is cut off"):
        open_checkpoint(ModelConfig(path=str(broken)))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"architectures": ["Qwen9ForCausalLM"]}, "'Qwen9ForCausalLM'"),
        ({"architectures": None}, "'architectures' must hold one model class"),
        ({"hidden_size": 0}, "hidden_size must be a positive whole number"),
        ({"eos_token_id": "x"}, "eos_token_id must be an id"),
    ],
)
def test_mistakes_in_its_configuration_name_the_file(folder, tmp_path, changes, sentence) -> None:
    own = tmp_path / "folder"
    own.mkdir()
    for part in folder.iterdir():
        own.joinpath(part.name).write_bytes(part.read_bytes())
    config = json.loads((own / "config.json").read_text())
    (own / "config.json").write_text(json.dumps(config | changes))
    file = single_file_format.pack(own, tmp_path / "changed.whole")
    with pytest.raises(UserError) as caught:
        LLM(file, **SETTINGS)
    told = [line for line in str(caught.value).splitlines() if sentence in line]
    assert told
    assert str(file) in told[0]
    assert "config.json" not in str(caught.value).replace("model.ignore_config", "")


def test_a_tokenizer_may_be_one_file_as_well(folder) -> None:
    tokenizer = str(folder / "tokenizer.json")
    with LLM(folder, tokenizer=tokenizer, device="cpu", cache={"pages": 16}) as llm:
        assert llm.get_tokenizer().decode(llm.get_tokenizer().encode("the wind")) == "the wind"
