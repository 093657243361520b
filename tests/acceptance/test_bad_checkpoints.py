"""Checkpoints whose weights are missing, foreign, broken or hostile: refused by name, unread."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path

import pytest
import torch

from plugins.sources.mmap import MmapSource
from tests.acceptance.broken import broken, call, save_sharded, unread, whole

__all__ = ["broken", "call", "unread", "whole"]

NORM = "model.norm.weight"
UP = "model.layers.1.mlp.up_proj.weight"


def shard(path: Path, number: int) -> Path:
    return sorted(path.glob("model-*.safetensors"))[number]


@pytest.mark.usefixtures("unread")
class TestFiles:
    def test_a_missing_shard(self, call, tmp_path):
        path = save_sharded(tmp_path / "sharded")
        lost = shard(path, 1)
        lost.unlink()
        said = call.mistake(path)
        assert f"names '{lost.name}', and there is no such file" in said
        assert "model.safetensors.index.json" in said

    def test_a_shard_of_another_checkpoint(self, call, tmp_path):
        path, other = (save_sharded(tmp_path / name) for name in "ab")
        shard(path, 1).write_bytes(shard(other, 2).read_bytes())
        said = call.mistake(path)
        assert "model.safetensors.index.json says that" in said
        assert f"is in {shard(path, 1).name}, but it is not" in said

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("pytorch_model.bin", "*.bin is there (pickles, which are never loaded"),
            ("model.gguf", "*.gguf is there (GGUF, which needs a plugin"),
            ("consolidated.00.pth", "*.pth is there (pickles, which are never loaded"),
        ],
    )
    def test_weights_in_another_format(self, call, broken, name, words):
        (broken.path / "model.safetensors").rename(broken.path / name)
        said = call.mistake(broken)
        assert "looked for model.safetensors.index.json, model.safetensors" in said
        assert words in said

    def test_no_weights_at_all(self, call, broken):
        (broken.path / "model.safetensors").unlink()
        assert f"{broken.path} holds no weights: looked for" in call.mistake(broken)

    def test_a_gguf_file_as_the_model(self, call, tmp_path):
        file = tmp_path / "model.gguf"
        file.write_bytes(b"GGUF" + bytes(64))
        assert "model.gguf is a file that no plugin reads. Give a folder" in call.mistake(file)

    def test_gguf_inside_a_safetensors_name(self, call, broken):
        broken.write("model.safetensors", b"GGUF" + bytes(100))
        assert "it is a GGUF file, not safetensors" in call.mistake(broken)

    def test_a_folder_where_the_weights_should_be(self, call, broken):
        (broken.path / "model.safetensors").unlink()
        (broken.path / "model.safetensors").mkdir()
        assert "model.safetensors" in call.mistake(broken)

    def test_a_file_that_may_not_be_read(self, call, broken, monkeypatch):
        # as root, chmod keeps nobody from reading
        opened = Path.open

        def refuse(self: Path, *given: object, **keywords: object) -> object:
            if self.suffix == ".safetensors":
                raise PermissionError(13, "Permission denied", str(self))
            return opened(self, *given, **keywords)  # type: ignore[call-overload]

        monkeypatch.setattr(Path, "open", refuse)
        said = call.mistake(broken)
        assert "model.safetensors cannot be read: [Errno 13] Permission denied" in said


@pytest.mark.usefixtures("unread")
class TestTensors:
    def test_a_missing_tensor(self, call, broken):
        broken.tensors(lambda t: t.pop(NORM))
        assert f"checkpoint tensor {NORM} is missing" in call.mistake(broken)

    def test_a_missing_part_of_a_fused_weight(self, call, broken):
        broken.tensors(lambda t: t.pop(UP))
        said = call.mistake(broken)
        assert f"{UP} is missing (for the up_proj part of" in said
        assert "model.layers.1.mlp.gate_up_proj.weight" in said

    def test_an_extra_tensor(self, call, broken):
        broken.tensors(lambda t: t.update(extra=torch.zeros(3)))
        assert "checkpoint tensor extra is read by nobody" in call.mistake(broken)

    def test_a_wrong_shape(self, call, broken):
        broken.tensors(lambda t: t.update({NORM: torch.zeros(65)}))
        assert f"{NORM} is (65,), but {NORM} needs (64,)" in call.mistake(broken)

    @pytest.mark.parametrize(("dtype", "name"), [(torch.int64, "I64"), (torch.uint8, "U8")])
    def test_a_wrong_type(self, call, broken, dtype, name):
        broken.tensors(lambda t: t.update({NORM: torch.zeros(64, dtype=dtype)}))
        assert f"{NORM} is of type {name}" in call.mistake(broken)

    def test_several_at_once(self, call, broken):
        def change(tensors: dict[str, torch.Tensor]) -> None:
            del tensors[UP]
            tensors[NORM] = torch.zeros(65)
            tensors["extra"] = torch.zeros(3)

        broken.tensors(change)
        said = call.mistake(broken)
        assert all(words in said for words in (f"{UP} is missing", f"{NORM} is (65,)", "extra is"))

    def test_a_tied_head_with_values_of_its_own(self, call, broken):
        broken.tensors(lambda t: t.update({"lm_head.weight": torch.zeros(301, 64)}))
        said = call.mistake(broken)
        assert "lm_head.weight and model.embed_tokens.weight with different values" in said


def offsets(start: int, stop: int):
    def change(header: dict) -> None:
        header[NORM]["data_offsets"] = [start, stop]

    return change


@pytest.mark.usefixtures("unread")
class TestHeaders:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (offsets(10**9, 10**9 + 256), f"tensor '{NORM}' lies at bytes 1000000000"),
            (offsets(2**63, 2**63 + 256), f"tensor '{NORM}' has the impossible offsets"),
            (offsets(-256, 0), f"tensor '{NORM}' has the impossible offsets"),
            (offsets(256, 0), f"tensor '{NORM}' lies at bytes 256 to 0"),
            (offsets(0, 256), "overlap"),
            (offsets(0, 2**20), f"tensor '{NORM}'"),
            (lambda h: h[NORM].update(shape=[2**40, 2**40]), f"tensor '{NORM}' takes 256 bytes"),
            (lambda h: h[NORM].update(shape="64"), f"tensor '{NORM}' has the impossible shape"),
            (lambda h: h[NORM].update(dtype="PICKLE"), "the unknown type 'PICKLE'"),
            (lambda h: h.update(other=5), "tensor 'other' does not have just dtype"),
            (lambda h: h.update(__metadata__=[1]), "its __metadata__ is not a table of text"),
        ],
    )
    def test_a_header_that_lies(self, call, broken, change, words):
        broken.header(change)
        said = call.mistake(broken)
        assert words in said
        assert str(broken.path / "model.safetensors") in said

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b"", "it is empty"),
            (b"abc", "it is cut off"),
            (struct.pack("<Q", 2**62) + b"{}", "says that its header has"),
            (struct.pack("<Q", 10**6) + b"{}", "it is cut off: its header has 1000000 bytes"),
            (struct.pack("<Q", 4) + b"[[[[", "its header is not JSON"),
            (struct.pack("<Q", 50_000) + b"[" * 50_000, "its header is"),
            (struct.pack("<Q", 2) + b"{}" + bytes(10), "10 bytes behind the last tensor"),
            (b"version https://git-lfs.github.com/spec/v1\n", "so it is not safetensors"),
        ],
    )
    def test_a_file_that_is_none(self, call, broken, content, words):
        broken.write("model.safetensors", content)
        said = call.mistake(broken)
        assert words in said
        assert str(broken.path / "model.safetensors") in said

    def test_a_file_that_was_cut_off(self, call, broken):
        file = broken.path / "model.safetensors"
        os.truncate(file, file.stat().st_size // 2)
        assert "and the file holds" in call.mistake(broken)


def test_a_file_that_is_cut_off_while_it_is_read(call, broken, monkeypatch):
    # between the look at the headers and the reading of the weights
    file, looked = broken.path / "model.safetensors", MmapSource.__init__
    count = []

    def look(self: MmapSource, path: Path) -> None:
        looked(self, path)
        count.append(path)
        if len(count) == 2:
            os.truncate(file, file.stat().st_size // 2)

    monkeypatch.setattr(MmapSource, "__init__", look)
    assert f"{file}: tensor " in call.mistake(broken)


class Trap:
    """Unpickling this leaves a file behind."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.mark.usefixtures("unread")
def test_pickles_are_never_loaded(call, broken, tmp_path):
    mark = tmp_path / "ran"
    data = pickle.dumps({"state_dict": Trap(mark)})
    (broken.path / "model.safetensors").unlink()
    for name in ("pytorch_model.bin", "model.pt", "training_args.bin"):
        broken.write(name, data)
    call.mistake(broken)
    assert not mark.exists()
    pickle.loads(data)  # the trap works
    assert mark.exists()


def test_pickles_beside_good_weights_are_left_alone(call, broken, tmp_path):
    mark = tmp_path / "ran"
    broken.write("training_args.bin", pickle.dumps(Trap(mark)))
    assert call.on(broken).status == 0
    assert not mark.exists()


def test_code_of_a_checkpoint_never_runs(call, broken, tmp_path, caplog):
    mark = tmp_path / "ran"
    broken.write("evil.py", f"open({str(mark)!r}, 'w')\n")
    code = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    broken.json("config.json", auto_map=code)
    broken.json("tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Tokenizer", None]})
    said = call.on(broken)
    assert said.status == 0  # it is an ordinary Qwen3 all the same
    assert "asks for code inside the checkpoint (auto_map)" in caplog.text
    broken.json("config.json", architectures=["EvilForCausalLM"])
    words = call.mistake(broken)
    assert f"{broken.path / 'config.json'}: no model is called 'EvilForCausalLM'" in words
    assert "Code that a checkpoint brings (auto_map) is never run" in words
    (broken.path / "tokenizer.json").unlink()
    words = call.mistake(broken)
    assert "this tokenizer is code inside the checkpoint" in words
    assert "EvilForCausalLM" in words  # both mistakes, in one go
    assert not mark.exists()


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize("method", ["awq", "gptq", "fp8", "unheard-of"])
def test_a_quantization_that_nobody_reads(call, broken, method):
    broken.json("config.json", quantization_config={"quant_method": method})
    said = call.mistake(broken)
    assert f"quantization_config: {method}" in said
    assert "no plugin reads that format" in said
