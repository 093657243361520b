"""The built-in strategies as data: what they cut, whom they guard, what they refuse."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from torch import nn

import plugins.sharding
from core.parallel import Sharding
from core.parallel.strategy import fill_options
from core.registry import Registries


def strategy(name: str, axis: str | None = None, **options: Any) -> Sharding:
    registries = Registries()
    plugins.sharding.register(registries)
    kind = registries.sharding.get(name)
    return kind(axis or kind.default_axis, fill_options(kind.Options, options))


@pytest.mark.parametrize(
    ("name", "axis", "options", "dims", "guard", "layout"),
    [
        ("replicate", None, {}, {}, None, ("R", "R")),
        ("colwise", "q", {}, {"out": "q"}, None, ("R", "S:q")),
        ("colwise", "q", {"gather": "true"}, {"out": "q"}, "AllGather", ("R", "R")),
        ("rowwise", "q", {}, {"in": "q"}, "AllReduce", ("S:q", "R")),
        ("rowwise", "q", {"reduce": "scatter"}, {"in": "q"}, "ReduceScatter", ("S:q", "T")),
        ("rowwise", "q", {"reduce": "defer"}, {"in": "q"}, None, ("S:q", "P")),
        ("rowwise", "q", {"reduce": "none"}, {"in": "q"}, None, ("S:q", "P")),
        ("vocab", None, {}, {"out": "vocab"}, "MaskedLookup", ("R", "R")),
        ("vocab", "words", {}, {"out": "words"}, "MaskedLookup", ("R", "R")),
        ("vocab_head", None, {}, {"out": "vocab"}, "CutLogits", ("R", "R")),
        (
            "vocab_head",
            None,
            {"gather": "rank0"},
            {"out": "vocab"},
            "GatherToFirst",
            ("R", "S:vocab"),
        ),
        ("vocab_head", None, {"gather": "none"}, {"out": "vocab"}, None, ("R", "S:vocab")),
        ("expert", None, {}, {"expert": "experts"}, "AllReduce", ("R", "R")),
    ],
)
def test_what_a_strategy_cuts_and_guards(
    name: str,
    axis: str | None,
    options: dict[str, str],
    dims: dict[str, str],
    guard: str | None,
    layout: tuple[str, str],
) -> None:
    made = strategy(name, axis, **options)
    assert dict(made.dims) == dims
    assert (made.guard.__name__ if made.guard else None) == guard
    assert made.layout() == layout


def test_rank_0_alone_owns_the_bias_of_a_partial_sum() -> None:
    assert strategy("rowwise", "q").owner("bias") == 0
    assert strategy("rowwise", "q").owner("weight") is None
    assert strategy("colwise", "q").owner("bias") is None


class Norm(nn.Module):
    """Not a linear layer, but with a weight like one's bias."""


@pytest.mark.parametrize("name", ["colwise", "rowwise", "vocab_head"])
def test_linear_strategies_take_linear_layers_and_their_subclasses_only(name: str) -> None:
    made = strategy(name, "q")
    assert made.accepts(nn.Linear(2, 2)) is None
    assert made.accepts(type("Quantized", (nn.Linear,), {})(2, 2)) is None
    for module in (Norm(), nn.Embedding(2, 2), nn.Conv1d(2, 2, 1)):
        assert f"this is {type(module).__name__}" in str(made.accepts(module))


def test_vocab_takes_embeddings_and_expert_takes_stacks() -> None:
    assert strategy("vocab").accepts(nn.Embedding(2, 2)) is None
    assert "this is Linear" in str(strategy("vocab").accepts(nn.Linear(2, 2)))
    assert strategy("expert").accepts(nn.Bilinear(2, 2, 3, bias=False)) is None
    for single in (nn.Linear(2, 2), nn.Linear(2, 2, bias=False), nn.Embedding(2, 2)):
        assert "leading expert dim" in str(strategy("expert").accepts(single))


def test_packed_has_the_guard_of_its_parts_and_they_must_agree() -> None:
    registries = Registries()
    plugins.sharding.register(registries)
    packed = registries.sharding.get("packed")
    rowwise, whole = strategy("rowwise", "q"), strategy("replicate")
    assert packed(None, packed.Options(), [rowwise, rowwise]).guard is rowwise.guard
    mixed = packed(None, packed.Options(), [rowwise, whole])
    assert "different collectives" in str(mixed.accepts(nn.Linear(2, 2)))
    plain = packed(None, packed.Options(), [strategy("colwise", "q"), strategy("colwise", "kv")])
    assert plain.accepts(nn.Linear(2, 2)) is None
    assert plain.layout() == ("R", "S:q S:kv")


def test_registering_imports_nothing_heavy() -> None:
    code = (
        "import sys; from core.registry import registries; import plugins.sharding as s, "
        "plugins.sources as w; s.register(registries); w.register(registries); "
        "assert len(registries.sharding.names()) >= 7; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
