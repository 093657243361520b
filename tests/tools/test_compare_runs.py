"""Lines of two engines beside each other: medians, ratios, and nothing from different work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from plugins.apps.bench.report import record
from plugins.apps.bench.workloads import workload
from tools import compare_runs

ROOT = Path(__file__).parents[2]

VLLM = """
__version__ = "0"


class SamplingParams:
    def __init__(self, *, temperature, max_tokens, ignore_eos):
        assert ignore_eos
        self.max_tokens = max_tokens


class LLM:
    def __init__(self, *, model, max_model_len, max_num_seqs, gpu_memory_utilization):
        import os
        assert os.environ["NCCL_NVLS_ENABLE"] == "0"

    def reset_prefix_cache(self):
        pass

    def generate(self, prompts, params, use_tqdm):
        from types import SimpleNamespace as Of
        return [Of(outputs=[Of(token_ids=[1] * p.max_tokens)]) for p in params]
"""


def lines(path: Path, *found: tuple[str, float, str]) -> Path:
    path.write_text("".join(
        json.dumps({"name": name, "out_tok_s": rate, "digest": digest}) + "\n"
        for name, rate, digest in found
    ))  # fmt: skip
    return path


def test_seeds_are_one_row_and_ratios_are_of_equal_workloads(tmp_path: Path) -> None:
    alone = ("decode:1:8:8:1", 5.0, "z")
    ours = lines(tmp_path / "a", ("nanobench:0", 30, "x"), ("nanobench:1", 90, "y"), alone)
    theirs = lines(tmp_path / "b", ("nanobench:1", 30, "y"), ("nanobench:0", 20, "x"))
    found = compare_runs.rows(compare_runs.read(ours), compare_runs.read(theirs))
    assert found == [("nanobench", 60, 25, 2.4, [1.5, 3.0])]


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    line = {"name": "m", "engine": "a\u2028b\x85c"}
    text = json.dumps(line, ensure_ascii=False) + "\r\n\n" + json.dumps(line) + "\n"
    (tmp_path / "a").write_bytes(text.encode())
    assert compare_runs.read(tmp_path / "a") == {"m": [line, line]}


def test_different_work_is_not_compared(tmp_path: Path) -> None:
    ours, theirs = lines(tmp_path / "a", ("m", 1, "x")), lines(tmp_path / "b", ("m", 1, "y"))
    with pytest.raises(ValueError, match="different work"):
        compare_runs.rows(compare_runs.read(ours), compare_runs.read(theirs))


def test_vllm_is_given_the_same_work_and_told_of_in_the_same_keys(tmp_path: Path) -> None:
    (tmp_path / "vllm.py").write_text(VLLM)
    names = ["decode:2:8:4:1", "prefill:2:16:1"]
    words = ["--model", "any", "--out", str(tmp_path / "theirs"), *names]
    subprocess.run(
        [sys.executable, "-m", "tools.bench_vllm", *words],
        cwd=ROOT, check=True, capture_output=True, env={"PYTHONPATH": str(tmp_path), "PATH": ""},
    )  # fmt: skip
    found = compare_runs.read(tmp_path / "theirs")
    assert list(found) == names
    for name in names:
        (line,) = found[name]
        ours = record(workload(name), 1.0, "plait", tp=1)
        assert list(line) == list(ours)
        assert line["digest"] == ours["digest"]
