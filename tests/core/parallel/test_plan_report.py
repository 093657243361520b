"""The dry run: Qwen3's cuts as golden rows, and a footer that agrees with the recipes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from toys import Config, changed, toy_plan

from core.parallel import ParallelPlan

HERE = Path(__file__).parent
SIZES = HERE.parents[2] / "models" / "qwen3" / "sizes"


def qwen3(name: str, tensor: int) -> ParallelPlan:
    from models.qwen3.architecture import Qwen3

    raw = json.loads((SIZES / name / "config.json").read_text())
    return ParallelPlan.build(Qwen3, Qwen3.config(raw), tensor)


def one_row_a_line(found: dict[str, Any]) -> str:
    rows = ",\n".join(json.dumps(row) for row in found["rows"])
    rest = [f'"{name}": {json.dumps(v)}' for name, v in found.items() if name != "rows"]
    return "{\n" + ",\n".join([*rest, f'"rows": [\n{rows}\n]']) + "\n}\n"


@pytest.mark.parametrize(
    ("name", "tensor", "rank"),
    [("Qwen3-0.6B", 1, 0), ("Qwen3-0.6B", 2, 1), ("Qwen3-4B", 3, 2), ("Qwen3-32B", 16, 5)],
)
def test_golden_recipes(name: str, tensor: int, rank: int) -> None:
    """A change of plan shows as a diff in `golden`: delete the file, run the test, look at it."""
    found = qwen3(name, tensor).as_json(rank)
    golden = HERE / "golden" / f"{name}-tp{tensor}-rank{rank}.json"
    if not golden.exists():
        golden.write_text(one_row_a_line(found))
        pytest.fail(f"{golden.name} was missing; it is written now, look at it")
    assert json.loads(json.dumps(found)) == json.loads(golden.read_text())


def test_layers_that_are_cut_alike_are_one_row() -> None:
    plan = toy_plan(2, Config(num_hidden_layers=3))
    folded, every = plan.table(1), plan.table(1, fold=False)
    assert sum(row.folded for row in folded) == len(every)
    names = {row.param for row in folded}
    assert "model.layers.0-2.self_attn.qkv_proj.weight" in names
    row = next(r for r in folded if "k_proj.weight" in r.source)
    assert row.source == "model.layers.0-2.self_attn.k_proj.weight[8:16,:]"
    assert (row.shape, row.region, row.read) == ((48, 32), "[32:40,:]", 0.5)


def test_constants_are_shown_too() -> None:
    rows = [row for row in toy_plan(2).table(1) if row.source == "0.0"]
    assert {(row.param, row.region) for row in rows} == {
        ("model.embed_tokens.weight", "[50:51,:]"),
        ("model.layers.0-1.self_attn.o_proj.bias", "[:]"),
        ("lm_head.weight", "[50:51,:]"),
    }


@pytest.mark.parametrize("tensor", [1, 2, 3])
def test_the_footer_counts_bytes_and_collectives(tensor: int) -> None:
    config = Config()
    plan = toy_plan(tensor, config)
    index = plan.expected_index("F32")
    summary = plan.summary(index)
    whole = sum(4 * math.prod(shape) for shape, _ in index.values())
    assert summary.checkpoint_bytes == whole
    assert summary.read_bytes == tuple(plan.bytes(rank, index) for rank in range(tensor))
    assert summary.collectives == (0 if tensor == 1 else 2 * config.num_hidden_layers + 2)
    assert summary.sizes == tuple(range(1, 9))
    copied = 1 - whole / sum(summary.read_bytes)
    assert summary.copied_share == pytest.approx(copied)


def test_an_uneven_cut_is_warned_about() -> None:
    config = changed(Config(), num_attention_heads=14, head_dim=32, intermediate_size=3)
    summary = toy_plan(3, config).summary()
    assert summary.imbalance > 1.25
    assert summary.warning == (
        f"The fullest rank reads {summary.imbalance:.2f} times the mean, and every step waits for "
        "it; another tensor size may be faster."
    )
    assert toy_plan(2).summary().warning == ""


def test_the_text_has_the_rows_and_the_footer() -> None:
    lines = toy_plan(2).describe(1).splitlines()
    assert lines[0].startswith("param (rank 1 of 2)")
    assert lines[0].endswith("-> region    read")
    assert lines[1].split() == [
        *("model.embed_tokens.weight", "(51,", "32)"),
        *("model.embed_tokens.weight[51:101,:]", "[0:50,:]", "49.5%"),
    ]
    assert lines[-2:] == [
        "collectives per forward    6",
        "tensor sizes that work     1 to 8",
    ]


def test_the_narrowed_fields_are_in_the_json() -> None:
    found: dict[str, Any] = toy_plan(3).as_json(2)
    assert found["local_config"] == {
        "vocab_size": 34,
        "intermediate_size": 17,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
    }
    assert found["axes"]["vocab"] == {"size": 101, "spans": [[68, 101]], "local": 34}
