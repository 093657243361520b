"""The plan app: who gets which part of every weight, and the sizes that follow."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from core.run import main

ROOT = Path(__file__).resolve().parents[3]
TOY = str(ROOT / "configs" / "toy-tp2.yaml")
SIZES = ROOT / "models" / "qwen3" / "sizes"


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the app with settings. -> what it printed."""

    def run(*words: str) -> str:
        status = main([TOY, *words])
        out = capsys.readouterr()
        assert status == 0, out.err
        return out.out

    return run


def regions(text: str) -> dict[str, list[str]]:
    """Each parameter's rows as "shape source -> region", without the padding between columns."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        cells = re.split(r"\s{2,}", line)
        if len(cells) == 5 and not cells[0].startswith("param"):
            name, shape, source, region, _ = cells
            found.setdefault(name, []).append(f"{shape} {source} -> {region}")
    return found


def footer(text: str) -> dict[str, str]:
    last = text.rstrip().rpartition("\n\n")[2]
    return {line[:32].strip(): line[32:] for line in last.splitlines()}


def test_the_toy_is_cut_as_on_paper(plan: Any) -> None:
    first, second = (regions(plan(f"run.rank={rank}")) for rank in (0, 1))
    layer = "model.layers.0-1"

    assert first[f"{layer}.self_attn.qkv_proj.weight"] == [
        f"(8, 8) {layer}.self_attn.q_proj.weight[0:4,:] -> [0:4,:]",
        f"(8, 8) {layer}.self_attn.k_proj.weight[0:2,:] -> [4:6,:]",
        f"(8, 8) {layer}.self_attn.v_proj.weight[0:2,:] -> [6:8,:]",
    ]
    assert second[f"{layer}.mlp.gate_up_proj.weight"] == [
        f"(16, 8) {layer}.mlp.gate_proj.weight[8:16,:] -> [0:8,:]",
        f"(16, 8) {layer}.mlp.up_proj.weight[8:16,:] -> [8:16,:]",
    ]
    assert second[f"{layer}.self_attn.o_proj.weight"] == [
        f"(8, 4) {layer}.self_attn.o_proj.weight[:,4:8] -> [:,:]"
    ]
    assert second["model.embed_tokens.weight"] == [
        "(16, 8) model.embed_tokens.weight[16:32,:] -> [:,:]"
    ]


def test_every_rank_is_shown_unless_one_is_named(plan: Any) -> None:
    titles = re.compile(r"^param \(rank (\d) of 2\)", re.MULTILINE)

    assert titles.findall(plan()) == ["0", "1"]
    assert titles.findall(plan("run.rank=1")) == ["1"]


def test_layers_are_folded_unless_all_are_wanted(plan: Any) -> None:
    every = regions(plan("run.rank=0", "run.layers=all"))

    assert {"model.layers.0.mlp.down_proj.weight", "model.layers.1.mlp.down_proj.weight"} < set(
        every
    )


def test_the_footer_says_what_a_model_takes(plan: Any) -> None:
    found = footer(plan(f"model.path={SIZES / 'Qwen3-8B'}", "parallel.tensor=8"))

    assert found == {
        "model": "8.19 B parameters, 16.4 GB in bf16",
        "KV cache of a token": "144 KiB; 18 KiB on each rank",
        "KV cache of a page": "36 MiB for 256 tokens",
        "bytes read": "2.05 GB on each rank",
        "read by more than one rank": "0.0%",
        "fullest rank / mean": "1.00",
        "collectives a forward pass": "74",
        "tensor sizes that work": "1 to 32",
    }


def test_copied_weights_are_counted(plan: Any) -> None:
    found = footer(plan("parallel.tensor=4"))

    # 4 ranks share 2 key/value heads, so k and v are read twice, and 7 norms four times
    k_and_v, norms = 2 * 2 * 4 * 8, 2 * (8 + 8 + 2 + 2) + 8
    total = 2 * 32 * 8 + 2 * (8 * 8 * 2 + 4 * 8 * 2 + 3 * 16 * 8) + norms
    copied = k_and_v + 3 * norms
    assert found["read by more than one rank"] == f"{copied / (total + copied):.1%}"


def test_a_bad_balance_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    heads = "num_attention_heads: 14, num_key_value_heads: 2, head_dim: 16, intermediate_size: 2"

    assert main([TOY, f"model.config={{{heads}}}", "parallel.tensor=3"]) == 0

    assert "times the mean" in capsys.readouterr().err


def test_everything_is_there_as_json(plan: Any, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan(f"run.json={path}")
    whole = json.loads(path.read_text())

    assert [rank["rank"] for rank in whole["ranks"]] == [0, 1]
    assert whole["facts"]["collectives a forward pass"] == "6"
    assert json.loads(plan("run.json=-")) == whole


def test_a_rank_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([TOY, "run.rank=2"]) == 2

    assert "ranks 0 to 1" in capsys.readouterr().err


def test_a_checkpoint_that_does_not_fit_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tools.make_checkpoint import main as make

    make([str(tmp_path), "--set", "num_hidden_layers=1"])

    words = ["model.weights=auto", f"model.path={tmp_path}", "model.config={num_hidden_layers: 2}"]
    assert main([TOY, *words]) == 2

    assert "model.layers.1.self_attn.q_proj.weight is missing" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_a_large_model_needs_little_memory() -> None:
    words = [f"model.path={SIZES / 'Qwen3-32B'}", "parallel.tensor=8"]
    # the peak of this process alone; getrusage would count the one that started it
    script = (
        "import sys; from core.run import main; status = main(sys.argv[1:]);"
        "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0], file=sys.stderr);"
        "sys.exit(status)"
    )

    done = subprocess.run(
        [sys.executable, "-c", script, TOY, *words],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert int(done.stderr.split()[-1]) * 1024 < 600e6


def test_ranks_of_different_sizes_are_told_apart(plan: Any) -> None:
    found = footer(plan("parallel.tensor=3", "model.config={num_key_value_heads: 4}"))

    assert found["KV cache of a token"] == "128 B; 64 B on rank 0, 32 B on ranks 1 to 2"
