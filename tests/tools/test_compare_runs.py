"""Lines of two engines beside each other: medians, ratios, and nothing from different work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

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


def test_ratios_are_drawn_to_scale(tmp_path: Path) -> None:
    ours = lines(tmp_path / "a", ("decode:8:1:1:1", 30, "x"), ("nanobench:0", 10, "y"))
    theirs = lines(tmp_path / "b", ("decode:8:1:1:1", 10, "x"), ("nanobench:0", 20, "y"))
    svg = tmp_path / "speed.svg"
    words = [ours, theirs, ours, theirs, "--names", "small", "<large>", "--svg", svg]
    command = [sys.executable, "-m", "tools.compare_runs", *map(str, words)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    drawn = ElementTree.parse(svg).getroot()
    texts = [text.text for text in drawn.findall(".//{*}text")]
    assert texts.count("3.00") == texts.count("0.50") == 2
    assert {"nanobench, 256 requests", "8 requests at once", "small", "<large>"} <= {*texts}
    bars = [
        float(r.get("width", 0)) for r in drawn.findall(".//{*}rect") if r.get("height") == "14.0"
    ]
    assert [round(bar / bars[0], 2) for bar in bars] == [1, 1, 6, 6]
    assert "script" not in svg.read_text()


def test_files_that_are_no_pairs_are_refused(tmp_path: Path) -> None:
    file = str(lines(tmp_path / "a", ("nanobench:0", 10, "y")))
    command = [sys.executable, "-m", "tools.compare_runs", file, file, file]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "files come in pairs" in done.stderr
