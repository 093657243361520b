"""Each parameter is an explicit concatenation of checkpoint slices, however they are stored."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from toys import Config, checkpoint, reference, toy, toy_plan

from core.parallel import (
    DictSource,
    ParallelPlan,
    allocate,
    even,
    experts,
    load,
    unshard,
    verify_plan,
)

GATE_UP = "model.layers.*.mlp.gate_up_proj"
PARTS = [
    {"source": "gate_proj", "strategy": "colwise:mlp"},
    {"source": "up_proj", "strategy": "colwise:mlp"},
]


def loaded(plan: ParallelPlan, rank: int, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    source = DictSource(tensors)
    plan.check(source.index(), source)
    model = allocate(plan.local_model(rank), "cpu", torch.float64)
    params = dict(model.named_parameters())
    load(plan.recipe(rank), params, source)
    return {name: parameter.data for name, parameter in params.items()}


def comes_back(plan: ParallelPlan, tensors: dict[str, Tensor]) -> bool:
    states = [loaded(plan, rank, tensors) for rank in range(plan.tensor)]
    back = unshard(plan, states)
    return set(back) == set(tensors) and all(torch.equal(back[n], tensors[n]) for n in tensors)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_packed_parts_lie_end_to_end_in_the_order_of_the_plan(ranks: int) -> None:
    config = Config(mlp_bias=True)
    weights, plan = checkpoint(config), toy_plan(ranks, config)
    at = "model.layers.1"
    packed = {
        "self_attn.qkv_proj": [("q_proj", "q"), ("k_proj", "kv"), ("v_proj", "kv")],
        "mlp.gate_up_proj": [("gate_proj", "mlp"), ("up_proj", "mlp")],
    }
    for rank in range(ranks):
        params = loaded(plan, rank, weights)
        for module, parts in packed.items():
            parent = module.partition(".")[0]
            for role in ("weight", "bias"):
                expected = torch.cat(
                    [
                        weights[f"{at}.{parent}.{source}.{role}"][a:b]
                        for source, axis in parts
                        for a, b in plan.cuts[axis].spans[rank]
                    ]
                )
                assert torch.equal(params[f"{at}.{module}.{role}"], expected)


def stored_as(kind: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The checkpoint with gate and up in one tensor, end to end or alternating."""
    result = {}
    for name, tensor in weights.items():
        if ".up_proj." in name:
            continue
        if ".gate_proj." in name:
            pair = [tensor, weights[name.replace("gate_proj", "up_proj")]]
            whole = torch.cat(pair) if kind == "fused" else torch.stack(pair, 1).flatten(0, 1)
            result[name.replace("gate_proj", "gate_up")] = whole
        else:
            result[name] = tensor
    return result


@pytest.mark.parametrize("ranks", [1, 3, 4])
@pytest.mark.parametrize("kind", ["fused", "interleaved:2"])
def test_how_parts_are_stored_changes_nothing_but_where_they_are_read(
    kind: str, ranks: int
) -> None:
    config = Config(mlp_bias=True)
    weights = checkpoint(config)
    rule = {"strategy": "packed", "on_disk": kind, "source": "gate_up", "parts": PARTS}
    plan = toy_plan(ranks, config, overrides={GATE_UP: rule})
    tensors = stored_as(kind.partition(":")[0], weights)
    split = toy_plan(ranks, config)
    for rank in range(ranks):
        found, expected = loaded(plan, rank, tensors), loaded(split, rank, weights)
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert comes_back(plan, tensors)


def test_a_weight_stored_transposed() -> None:
    config = Config(mlp_bias=True)
    weights = checkpoint(config)
    rule = {"strategy": "rowwise", "axis": "mlp", "perm": [1, 0]}
    plan = toy_plan(3, config, overrides={"model.layers.*.mlp.down_proj": rule})
    stored = {
        name: tensor.T.contiguous() if name.endswith("down_proj.weight") else tensor
        for name, tensor in weights.items()
    }
    plain = toy_plan(3, config)
    for rank in range(3):
        found, expected = loaded(plan, rank, stored), loaded(plain, rank, weights)
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert comes_back(plan, stored)


def test_a_part_that_no_axis_cuts_takes_what_the_others_leave() -> None:
    """A latent and a rotary part, say: one replicated, the other cut."""
    family = SimpleNamespace(
        model=lambda c: nn.ModuleDict({"both": nn.Linear(6, 5 + c.inner, bias=False)}),
        axes={"mlp": even("inner")},
        plan={"both": {"latent": "replicate", "rest": "colwise:mlp"}},
    )
    weights = {"latent.weight": torch.randn(5, 6), "rest.weight": torch.randn(7, 6)}
    plan = ParallelPlan.build(family, Sizes(inner=7), 2, replicate_limit=1.0)
    params = loaded(plan, 1, {n: t.double() for n, t in weights.items()})
    expected = torch.cat([weights["latent.weight"], weights["rest.weight"][4:]]).double()
    assert torch.equal(params["both.weight"], expected)


@dataclass(frozen=True)
class Sizes:
    inner: int = 6
    num_local_experts: int = 5


class Stack(nn.Module):
    def __init__(self, c: Sizes) -> None:
        super().__init__()
        self.gate_up = nn.Module()
        self.gate_up.weight = nn.Parameter(torch.zeros(c.num_local_experts, 2 * c.inner, 4))
        self.down = nn.Module()
        self.down.weight = nn.Parameter(torch.zeros(c.num_local_experts, 4, c.inner))


@pytest.mark.parametrize("order", [{}, {"order": "round_robin"}, {"slots": ((3, 0, 1), (2, 4, 3))}])
def test_a_rank_holds_its_experts_one_tensor_each_on_disk(order: dict[str, Any]) -> None:
    family = SimpleNamespace(
        model=Stack,
        axes={"experts": experts("num_local_experts", **order)},
        plan={
            "gate_up": {
                "strategy": "packed",
                "parts": [
                    {"source": "{e}.gate", "strategy": "expert", "size": "inner"},
                    {"source": "{e}.up", "strategy": "expert", "size": "inner"},
                ],
            },
            "down": {"strategy": "expert", "source": "{e}.down"},
        },
    )
    config = Sizes()
    shapes = {"gate": (6, 4), "up": (6, 4), "down": (4, 6)}
    tensors = {
        f"{e}.{name}.weight": torch.randn(shape, dtype=torch.float64)
        for e in range(5)
        for name, shape in shapes.items()
    }
    plan = ParallelPlan.build(family, config, 2)
    for rank in range(2):
        params = loaded(plan, rank, tensors)
        mine = [e for a, b in plan.cuts["experts"].spans[rank] for e in range(a, b)]
        for local, e in enumerate(mine):
            both = torch.cat([tensors[f"{e}.gate.weight"], tensors[f"{e}.up.weight"]])
            assert torch.equal(params["gate_up.weight"][local], both)
            assert torch.equal(params["down.weight"][local], tensors[f"{e}.down.weight"])
    assert comes_back(plan, tensors)


def test_only_local_experts_are_opened() -> None:
    family = SimpleNamespace(
        model=Stack,
        axes={"experts": experts("num_local_experts")},
        plan={"gate_up": "expert", "down": {"strategy": "expert", "source": "{e}.down"}},
    )
    plan = ParallelPlan.build(family, Sizes(), 2)
    opened = {op.src for op in plan.recipe(1)}
    assert opened == {"gate_up.weight", "3.down.weight", "4.down.weight"}


def test_checkpoint_names_may_carry_a_prefix() -> None:
    config = Config()
    rename = {"language_model.model.": "model.", "language_model.lm_head.": "lm_head."}
    plan = ParallelPlan.build(toy(rename=rename), config, 2, replicate_limit=1.0)
    weights = {f"language_model.{name}": t for name, t in checkpoint(config).items()}
    assert comes_back(plan, weights)


@given(st.permutations(["q_proj", "k_proj", "v_proj"]))
def test_only_the_model_s_own_order_of_parts_agrees_with_the_reference(order: list[str]) -> None:
    """N ranks equal one rank in any order: this is what `reference` is for."""
    config = Config(num_hidden_layers=1, num_key_value_heads=8)
    axis = {"q_proj": "q", "k_proj": "kv", "v_proj": "kv"}
    plan = {"model.layers.*.self_attn.qkv_proj": {n: f"colwise:{axis[n]}" for n in order}}
    verify_plan(toy(), config, (2,), overrides=plan)
    right = order == ["q_proj", "k_proj", "v_proj"]
    outcome = ""
    try:
        verify_plan(
            toy(),
            config,
            (2,),
            overrides=plan,
            reference=lambda w, ids: reference(config, w, ids),
        )
    except AssertionError as error:
        outcome = str(error)
    assert ("one rank and the reference differ" in outcome) is not right
    assert (outcome == "") is right
