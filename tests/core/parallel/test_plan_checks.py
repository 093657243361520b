"""Checks that look at shapes and checkpoints, P8 to P12: the exact sentence of each."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from toys import AXES, GATE_UP, Attention, Config, Toy, checkpoint, mistakes, toy, toy_plan

from core.errors import UserError
from core.parallel import DictSource, Fill, ParallelPlan, checks, even, vocab
from core.parallel.index import check_unread
from core.parallel.recipe import Recipe


def against(
    weights: dict[str, torch.Tensor], config: Config | None = None, auto_dtype: str | None = None
) -> list[str]:
    """The lines of the error that a checkpoint gives."""
    source, plan = DictSource(weights), toy_plan(2, config)
    with pytest.raises(UserError) as caught:
        plan.check(source.index(), source, auto_dtype=auto_dtype)
    return str(caught.value).splitlines()


class Fixed(Attention):
    """Has its width from nowhere in the config."""

    def __init__(self, c: Config) -> None:
        super().__init__(c)
        self.o_proj = nn.Linear(64, c.hidden_size)


def broken(c: Config) -> nn.Module:
    model = Toy(c)
    model.model.layers[0].self_attn = Fixed(c)
    return model


def test_p8_a_model_that_does_not_follow_its_config() -> None:
    assert mistakes(model=broken) == [
        "P8 model.layers.0.self_attn.o_proj.weight: the model builds (32, 64) on rank 0, the plan "
        "explains (32, 32)."
    ]


def test_p8_a_model_whose_axes_are_not_its_sizes() -> None:
    lines = mistakes(config=Config(head_dim=8), axes=AXES | {"mlp": even("hidden_size")})
    assert lines[0] == (
        "P8 model.layers.0.mlp.gate_up_proj.weight (parts gate_proj, up_proj): the model builds "
        "(104, 32) uncut, the plan explains (64, 32). (1 more like it)"
    )


def test_p8_one_use_of_a_narrowed_field_left_whole() -> None:
    (line,) = mistakes(overrides={"lm_head": "replicate"})
    assert line == (
        "P8 lm_head.weight: the model builds (51, 32) on rank 0, the plan explains (101, 32). The "
        "config is narrowed: num_attention_heads by axis 'q'; num_key_value_heads by axis 'kv'; "
        "intermediate_size by axis 'mlp'; vocab_size by axis 'vocab'. Cut this weight by one of "
        "them."
    )


def test_p8_a_parameter_that_only_some_ranks_have() -> None:
    def model(c: Config) -> nn.Module:
        made = Toy(c)
        if c.vocab_size < 101:
            made.model.extra = nn.Linear(2, 2, bias=False)
            del made.model.norm
        return made

    assert mistakes(model=model) == [
        "P8 model.norm.weight: the model has it uncut, but not on rank 0.",
        "P8 model.extra.weight: the model has it on rank 0, but not uncut.",
    ]


def cover(recipe: Recipe, plan: ParallelPlan, rank: int) -> list[str]:
    rules = {rule.param(role): rule for rule in plan.rules for role in rule.roles}
    problems = checks.check_cover(recipe, plan.shapes(rank), rules, plan.cuts, rank)
    return [problem.text for problem in problems]


def test_p8_a_region_written_twice() -> None:
    plan = toy_plan(2)
    twice = Fill("model.layers.0.mlp.gate_up_proj.weight", ((26, 30), (0, 32)))
    assert cover([*plan.recipe(0), twice], plan, 0) == [
        "the up_proj part of model.layers.0.mlp.gate_up_proj.weight: [26:30,0:32] is written twice "
        "on rank 0."
    ]


def test_p8_a_region_written_by_nothing() -> None:
    plan = toy_plan(2)
    absent = "model.layers.1.self_attn.k_proj.weight"
    hole = [op for op in plan.recipe(1) if getattr(op, "src", "") != absent]
    assert cover(hole, plan, 1) == [
        "the k_proj part of model.layers.1.self_attn.qkv_proj.weight: [32:40,0:32] is written by "
        "nothing on rank 1."
    ]


def test_p8_a_region_outside_and_a_name_that_is_no_parameter() -> None:
    recipe: Recipe = [Fill("w", ((0, 4),)), Fill("v", ((0, 1),))]
    problems = checks.check_cover(recipe, {"w": (3,)}, {}, {}, 0)
    assert [p.text for p in problems] == [
        "v is written, but it is no parameter.",
        "w (3,): region [0:4] lies outside it on rank 0.",
    ]


def test_p9_a_missing_tensor() -> None:
    weights = checkpoint(Config())
    del weights["model.layers.1.self_attn.k_proj.weight"]
    assert against(weights) == [
        "P9 checkpoint tensor model.layers.1.self_attn.k_proj.weight is missing (for the k_proj "
        "part of model.layers.1.self_attn.qkv_proj.weight). Did you mean "
        "'model.layers.1.self_attn.v_proj.weight'?"
    ]


def test_p9_a_tensor_of_the_wrong_shape() -> None:
    weights = checkpoint(Config())
    weights["model.norm.weight"] = torch.ones(31)
    assert against(weights) == [
        "P9 checkpoint tensor model.norm.weight is (31,), but model.norm.weight needs (32,)."
    ]


def test_p9_numbers_of_the_wrong_kind() -> None:
    weights = checkpoint(Config())
    weights["model.norm.weight"] = torch.ones(32, dtype=torch.int8)
    assert against(weights) == [
        "P9 checkpoint tensor model.norm.weight is of type I8, but model.norm.weight needs "
        "plain floating point numbers."
    ]


def test_p9_a_cast_that_loses_precision_and_that_nobody_asked_for() -> None:
    weights = {n: t.bfloat16() for n, t in checkpoint(Config()).items()}
    toy_plan(2).check(DictSource(weights).index(), auto_dtype="BF16")
    weights["model.norm.weight"] = weights["model.norm.weight"].float()
    assert against(weights, auto_dtype="BF16") == [
        "P9 checkpoint tensor model.norm.weight is of type F32, and BF16 would lose precision. "
        "Name the dtype that you want in model.dtype."
    ]


def test_p10_a_tensor_that_nobody_reads() -> None:
    weights = checkpoint(Config())
    weights["model.layers.0.mlp.extra.weight"] = torch.ones(2, 2)
    assert against(weights) == [
        "P10 checkpoint tensor model.layers.0.mlp.extra.weight is read by nobody. If that is "
        "right, add a pattern for it to the plan's ignore."
    ]
    plan = ParallelPlan.build(toy(ignore=("**.extra.weight",)), Config(), 2, replicate_limit=1)
    plan.check(DictSource(weights).index())


def test_p10_elements_that_no_rank_reads() -> None:
    plan = toy_plan(2)
    index = DictSource(checkpoint(Config())).index()
    problems = check_unread([plan.recipe(0)], {}, index, (), {})
    assert [p.text for p in problems if "embed" in p.text] == [
        "checkpoint tensor model.embed_tokens.weight: [51:101,0:32] is read by no rank."
    ]
    assert check_unread([plan.recipe(0), plan.recipe(1)], {}, index, (), {}) == []


TIED = Config(tie_word_embeddings=True)


def test_p11_tied_parameters_on_different_axes() -> None:
    axes = AXES | {"words": vocab("vocab_size")}
    assert mistakes(config=TIED, axes=axes, overrides={"lm_head": "vocab_head:words"}) == [
        "P11 lm_head.weight and model.embed_tokens.weight are one tied parameter, but the plan "
        "cuts them differently: by 'words' on dim 0 and by 'vocab' on dim 0. Give both the same "
        "axis."
    ]


def test_p11_a_checkpoint_whose_tied_tensors_differ() -> None:
    weights = checkpoint(TIED)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    source = DictSource(weights)
    toy_plan(2, TIED).check(source.index(), source)
    weights["lm_head.weight"][100, 31] += 1
    assert against(weights, config=TIED) == [
        "P11 the checkpoint holds lm_head.weight and model.embed_tokens.weight with different "
        "values, but the config ties lm_head.weight to model.embed_tokens.weight."
    ]


def test_p11_is_found_by_the_rank_that_reads_the_difference() -> None:
    weights = checkpoint(TIED)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    weights["lm_head.weight"][100] += 1
    source, plan = DictSource(weights), toy_plan(2, TIED)
    plan.check(source.index(), source, rank=0)
    with pytest.raises(UserError, match="P11"):
        plan.check(source.index(), source, rank=1)


def test_p11_tied_tensors_of_different_shapes() -> None:
    weights = checkpoint(TIED)
    weights["lm_head.weight"] = torch.ones(3, 32)
    assert against(weights, config=TIED) == [
        "P11 lm_head.weight and model.embed_tokens.weight differ in shape, but the config ties "
        "lm_head.weight to model.embed_tokens.weight."
    ]


def test_a_tied_checkpoint_may_hold_the_head_instead_of_the_embedding() -> None:
    weights = checkpoint(TIED)
    weights["lm_head.weight"] = weights.pop("model.embed_tokens.weight")
    index, plan = DictSource(weights).index(), toy_plan(2, TIED)
    plan.check(index)
    assert "lm_head.weight" in {getattr(op, "src", "") for op in plan.recipe(0, index)}


def test_p12_matrices_on_every_rank() -> None:
    whole = [
        {"source": n, "strategy": "replicate", "size": "intermediate_size"}
        for n in ("gate_proj", "up_proj")
    ]
    overrides = {
        GATE_UP: {"strategy": "packed", "parts": whole},
        "model.layers.*.mlp.down_proj": "replicate",
    }
    assert mistakes(overrides=overrides, replicate_limit=0.01) == [
        "P12 36.8% of the weights are matrices copied whole to every rank (limit 1.0%), most of it "
        "model.layers.0.mlp.gate_up_proj.weight, model.layers.1.mlp.gate_up_proj.weight, "
        "model.layers.0.mlp.down_proj.weight. Cut them in the plan, or raise "
        "parallel.replicate_limit."
    ]
    toy_plan(2, overrides=overrides, replicate_limit=0.5)
    toy_plan(1, overrides=overrides, replicate_limit=0.01)  # one rank copies nothing
