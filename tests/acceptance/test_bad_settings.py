"""Settings that cannot be: refused with their key and what to do, before weights are read."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from core import LLM, UserError
from core.worker import memory
from tests.acceptance.broken import call, unread, whole

__all__ = ["call", "unread", "whole"]

ROOT = Path(__file__).parents[2]


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("model.paht=x", "model.paht: there is no such key. Did you mean model.path?"),
        ("modle.path=x", "modle: there is no such section. Did you mean model?"),
        ("extends=qwen3", "extends: belongs into a file"),
        ("sampler=minp", "sampler: no sampler is called 'minp'. Registered: default"),
        ("attention=nope", "attention: no attention backend is called 'nope'"),
        ("model.weights=nope", "model.weights: no weight source is called 'nope'"),
        ("run=nope", "run: no app is called 'nope'"),
        ("sampler.heat=3", "sampler.heat: sampler 'default' has no such option"),
        (
            "parallel.plan={model.layers.*.mlp.gate: colwise}",
            "has no rule 'model.layers.*.mlp.gate' to replace. Did you mean",
        ),
        ("parallel.plan={lm_head: colwisee}", "rule 'lm_head': no sharding strategy is called"),
        ("parallel.tensor=5", "Sizes that work: 1 to 4"),
        ("parallel.tensor=0", "parallel.tensor: must be 1 or more, not 0"),
        ("parallel.tensor=1000000000", "parallel.tensor: must be 1024 or less"),
        ("parallel.tensor=two", "parallel.tensor: must be a whole number, not 'two'"),
        ("parallel.pipeline=2", "pipeline parallel is not implemented"),
        ("model.max_length=257", "model.max_length is 257, but positions of"),
        ("model.max_length=1", "model.max_length: must be 2 or more"),
        ("model.seed=99999999999999999999", "model.seed: must be 9223372036854775807 or less"),
        ("model.dtype=float8", "model.dtype: must be auto, float32, bfloat16 or float16"),
        ("model.device=mps", "model.device: must be auto, cpu, cuda or cuda:N, not 'mps'"),
        ("cache.page_size=0", "cache.page_size: must be 1 or more, not 0"),
        ("cache.page_size=99999999999999999999", "cache.page_size: must be 2147483647 or less"),
        ("cache.page_size=1000000000", "the cache cannot hold one page"),
        ("cache.pages=0", "cache.pages: must be 1 or more, not 0"),
        ("cache.pages=2000000000", "cache.pages asks for"),
        ("cache.memory=1B", "the cache cannot hold one page: cache.memory leaves 0 MiB"),
        ("cache.memory=much", "'much' is not a size. Write a number and a unit"),
        ("cache.dtype=int8", "cache.dtype: must be auto, float32"),
        ("scheduler.max_num_seqs=0", "max_num_seqs must lie in 1 to 65,536, and is 0"),
        ("scheduler.max_num_seqs=1000000000", "max_num_seqs must lie in 1 to 65,536"),
        ("scheduler.max_num_batched_tokens=0", "max_num_batched_tokens must lie in 1 to"),
        ("scheduler.watermark=.nan", "watermark must be a share below 1, and is nan"),
        ("scheduler.max_chunk=-1", "max_chunk must be 0 or more tokens, and is -1"),
        ("executor=torchrun", "Start with torchrun --nproc-per-node N -m core.run"),
        ("model.path=/nowhere", "model.path: there is no folder or file /nowhere"),
        ("plugins=[/nowhere.py]", "plugin /nowhere.py: there is no such file"),
        ("run.params={temperatur: 1}", "has no parameter 'temperatur'. Did you mean"),
        ("run.params=3", "run.params: must be a mapping, not 3"),
    ],
    ids=lambda value: value.partition("=")[0] if "=" in value else "",
)
def test_one_setting(call, whole, word, words, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    if word.startswith(("run.params", "cache.page_size=1000000000")):
        monkeypatch.undo()  # known when the engine is there
    assert words in call.mistake(whole, word)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("device", ["cuda", "cuda:3"])
@pytest.mark.usefixtures("unread")
def test_a_device_that_is_not_there(call, whole, device):
    said = call.mistake(whole, f"model.device={device}")
    assert f"model.device is {device}, but torch {torch.__version__} sees no CUDA" in said
    assert "Say model.device=cpu" in said


def test_all_settings_are_told_at_once(call, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "model: {path: x, paht: y}\nsampler: {use: minp}\ncache: {pages: 0, page_size: z}\n"
        "scheduler:\n  max_num_seqs: 0\n  watermark: 3\n"
    )
    said = call(str(file), "parallel.tensor=0")
    assert said.status == 2
    for words in (
        ":1: model.paht: there is no such key",
        ":2: sampler: no sampler is called 'minp'",
        ":3: cache.page_size: must be a whole number or auto",
        ":4: scheduler: max_num_seqs must lie in",
        ":4: scheduler: watermark must be a share",
        "command line: parallel.tensor: must be 1 or more",
    ):
        assert words in said.error
    assert said.error.count("\n") >= 6


def test_a_setting_and_a_file_are_told_at_once(whole, tmp_path):
    with pytest.raises(UserError) as caught:
        LLM(whole, device="cpu", max_model_len=999, tokenizer=str(tmp_path / "nowhere"))
    assert "model.max_length is 999" in str(caught.value)
    assert "model.tokenizer: there is no folder or file" in str(caught.value)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("cache.pages=1", "cache.page_size=1"), "the cache holds a single token"),
        (
            ("cache.pages=1", "cache.page_size=4", "model.max_length=8"),
            "model.max_length is 8, and the cache holds 1 pages of 4 tokens",
        ),
        (
            ("cache.memory=100KB", "cache.page_size=256", "model.max_length=256"),
            "the cache cannot hold one page",
        ),
        (
            ("cache.memory=100KB", "cache.page_size=4", "model.max_length=256"),
            "model.max_length is 256, and the cache holds",
        ),
    ],
)
@pytest.mark.usefixtures("unread")
def test_a_cache_that_is_too_small(call, whole, words, sentence):
    said = call.mistake(whole, *words)
    assert sentence in said
    assert "cache.pages" in said or "cache memory" in said or "more memory" in said


@pytest.mark.usefixtures("unread")
def test_a_cache_that_the_machine_cannot_hold(call, whole, monkeypatch):
    monkeypatch.setattr(memory, "available_host_memory", lambda: 2**20)
    said = call.mistake(whole, "cache.memory=3MB", "cache.page_size=4")
    assert "cache.memory asks for" in said
    assert "this machine has 0.0 GiB free. Lower cache.memory" in said


def test_rows_that_the_machine_cannot_hold(call, whole, monkeypatch):
    monkeypatch.setattr(memory, "available_host_memory", lambda: 2**23)
    said = call.mistake(whole, "scheduler.max_num_seqs=60000", "cache.page_size=4")
    assert "scheduler.max_num_seqs asks for 0.1 GiB" in said


@pytest.mark.parametrize(
    "words",
    [
        ("cache.page_size=3",),
        ("cache.page_size=1",),
        ("cache.page_size=512",),  # longer than any request
        ("cache.pages=1", "cache.page_size=8"),
        ("scheduler.max_num_seqs=1",),
        ("scheduler.max_num_batched_tokens=1",),
        (
            "scheduler.max_num_seqs=1",
            "scheduler.max_num_batched_tokens=1",
            "cache.page_size=1",
            "cache.pages=6",
        ),
        ("cache.memory=1MB",),
        ("cache.memory=99999TB",),  # as much as can be of use
        ("model.max_length=6",),
    ],
    ids=" ".join,
)
def test_extremes_that_work_give_the_same_text(call, whole, words, request):
    cache = request.config.stash.setdefault(USUAL, {})
    if not cache:
        cache["out"] = call.on(whole).out
    said = call.on(whole, *words)
    assert (said.status, said.out) == (0, cache["out"])


USUAL = pytest.StashKey[dict[str, str]]()


def test_a_word_longer_than_any_file_name(call, whole):
    # the first word may be the name of a file
    said = call.on(whole, prompt="x" * 100)
    assert said.status == 0
    said = call(f"run.prompt={'y' * 5000}", f"model.path={whole}", "model.device=cpu")
    assert said.status == 2
    assert "the prompt has 5000 tokens" in said.error
    said = call("z" * 5000)
    assert said.status == 2
    assert "there is no such file" in said.error


def test_a_configuration_that_repeats_itself_without_end(call, tmp_path):
    file = tmp_path / "bomb.yaml"
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    file.write_text("\n".join(lines))
    said = call(str(file))
    assert said.status == 2
    assert "bomb.yaml:1: is not YAML: its aliases repeat too much" in said.error


def test_a_plugin_that_fails_is_told_once(call, tmp_path: Path, whole):
    plugin = tmp_path / "boom.py"
    plugin.write_text("raise ValueError('no luck')")
    said = call.mistake(whole, "-p", str(plugin))
    assert said.count("ValueError: no luck") == 1
    assert "plugin 'boom'" in said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full")
@pytest.mark.parametrize("where", ["a file", "the screen"])
def test_a_full_disk(call, whole, where):
    words = [f"model.path={whole}", "model.device=cpu", "run.prompt=hi"]
    if where == "a file":
        said = call.on(whole, "run.out=/dev/full")
        status, error, what = said.status, said.error, "run.out: /dev/full"
    else:
        with open("/dev/full", "w") as full:
            command = [sys.executable, "-m", "core.run", *words]
            seen = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        status, error, what = seen.returncode, seen.stderr, "The output"
    assert status == 2
    assert re.search(rf"^{what} cannot be written: .*No space left on device", error, re.MULTILINE)
    assert "Traceback" not in error
    assert "Exception ignored" not in error
