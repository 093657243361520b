"""Each check of a plan, by its code: the exact sentence, and all of them at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from toys import AXES, PLAN, Attention, Config, Toy, checkpoint, toy, toy_plan

from core import registry
from core.errors import UserError
from core.parallel import (
    DictSource,
    ParallelPlan,
    Partition,
    Partitioner,
    axis,
    even,
    gqa,
    vocab,
)

MLP = "model.layers.*.mlp.gate_up_proj"
QKV = "model.layers.*.self_attn.qkv_proj"
NORMS = "**.{q_norm,k_norm,input_layernorm,post_attention_layernorm,norm}"


def mistakes(tensor: int = 2, config: Config | None = None, **family: Any) -> list[str]:
    """The lines of the error that a family, or a config, gives."""
    options = {k: family.pop(k) for k in ("overrides", "replicate_limit") if k in family}
    options.setdefault("replicate_limit", 1.0)
    with pytest.raises(UserError) as caught:
        ParallelPlan.build(toy(**family), config or Config(), tensor, **options)
    return str(caught.value).splitlines()


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in PLAN.items() if name != key}


def against(weights: dict[str, torch.Tensor], tensor: int = 2, **options: Any) -> list[str]:
    """The lines of the error that a checkpoint gives."""
    source = DictSource(weights)
    auto_dtype = options.pop("auto_dtype", None)
    plan = toy_plan(tensor, options.pop("config", None), **options)
    with pytest.raises(UserError) as caught:
        plan.check(source.index(), source, auto_dtype=auto_dtype)
    return str(caught.value).splitlines()


def test_p1_a_rule_that_matches_nothing() -> None:
    plan = PLAN | {"model.layers.*.mlp.gat_up_proj": "colwise:mlp"}
    assert mistakes(plan=plan) == [
        "P1 rule 'model.layers.*.mlp.gat_up_proj' matches no module that owns parameters. Did you "
        "mean 'model.layers.*.mlp.gate_up_proj'?"
    ]


def test_p2_a_module_without_a_rule_told_once_for_all_layers() -> None:
    assert mistakes(plan=without(MLP)) == [
        "P2 model.layers.0.mlp.gate_up_proj owns parameters but no rule matches it; add one. "
        "(1 more like it)"
    ]


def test_p3_a_module_with_two_rules() -> None:
    assert mistakes(plan=PLAN | {"model.norm": "replicate"}) == [
        f"P3 model.norm is matched by {NORMS!r} and 'model.norm'; keep one."
    ]


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        (
            "colwize:mlp",
            "no sharding strategy is called 'colwize'. Did you mean 'colwise'? Registered: "
            "colwise, expert, packed, replicate, rowwise, vocab, vocab_head.",
        ),
        ("rowwise:mpl", "no axis 'mpl'. Did you mean 'mlp'? Axes: kv, mlp, q, vocab."),
        ("rowwise", "rowwise needs an axis, as in 'rowwise:mlp'."),
        ("replicate:mlp", "replicate takes no axis, so ':mlp' means nothing."),
        ("packed", "packed needs parts."),
        (
            "rowwise:mlp?redcue=sum",
            "no setting 'redcue'. Did you mean 'reduce'? Settings: reduce.",
        ),
        (
            "rowwise:mlp?reduce=avg",
            "reduce is 'avg'; it can be defer, none, scatter, sum.",
        ),
        ("colwise:mlp?gather=yes", "gather is 'yes'; it can be true or false."),
        ({"strategy": "rowwise:mlp", "parts": [
            {"source": "a", "strategy": "rowwise:mlp"}]}, "rowwise takes no parts."),
        ("row wise", "'row wise' does not read strategy[:axis][?name=value]."),
    ],
)  # fmt: skip
def test_p4_a_name_or_setting_that_does_not_exist(rule: object, sentence: str) -> None:
    key = "model.layers.*.mlp.down_proj"
    assert mistakes(overrides={key: rule}) == [f"P4 rule {key!r}: {sentence}"]


@pytest.mark.parametrize(
    ("declared", "sentence"),
    [
        (
            even("intermediate_sise"),
            "Config has no whole number 'intermediate_sise'. Did you mean 'intermediate_size'?",
        ),
        (
            even("attention_bias"),
            "Config has no whole number 'attention_bias'. Did you mean 'num_attention_heads'?",
        ),
        (
            axis("evn", "intermediate_size"),
            "no partition is called 'evn'. Did you mean 'even'? Registered: even, experts, gqa, "
            "vocab.",
        ),
        (
            axis("even", "intermediate_size", units=3),
            "no setting 'units'. Did you mean 'unit'? Settings: unit.",
        ),
        (
            axis("gqa", "intermediate_size"),
            "gqa cuts 2 config fields together, not 1.",
        ),
        (
            gqa("num_attention_heads", "num_key_value_heads", unit=8),
            "it names 1 axes for 2 fields.",
        ),
    ],
)
def test_p4_an_axis_that_cannot_be(declared: Any, sentence: str) -> None:
    assert mistakes(axes=AXES | {"mlp": declared}) == [f"P4 axis 'mlp': {sentence}"]


def test_p4_an_override_of_no_rule() -> None:
    (line,) = mistakes(overrides={"lm_haed": "replicate"})
    assert line.startswith(
        "P4 parallel.plan has no rule 'lm_haed' to replace. Did you mean 'lm_head'? Rules: "
    )


def test_p4_parts_of_unknown_size() -> None:
    assert mistakes(overrides={MLP: {"gate_proj": "replicate", "up_proj": "replicate"}}) == [
        f"P4 rule {MLP!r}: no axis says how large gate_proj, up_proj are on 'out'; give each a "
        "'size' (a number or a config field) in the long form. (1 more like it)"
    ]


def test_p4_two_axes_that_narrow_one_field_differently() -> None:
    axes = AXES | {"rows": even("intermediate_size", unit=8)}
    lines = mistakes(axes=axes, overrides={"model.layers.*.mlp.down_proj": "rowwise:rows"})
    assert lines[0] == (
        "P4 axes of different cuts share the config field 'intermediate_size'. (1 more like it)"
    )


@pytest.mark.parametrize(
    ("key", "rule", "sentence"),
    [
        (
            NORMS,
            "colwise:q",
            "model.layers.0.self_attn.q_norm: colwise does not fit. It cuts nn.Linear only, and "
            "this is RMSNorm: a layer that mixes its cut dim would need a collective of its own. "
            "(8 more like it)",
        ),
        (
            "lm_head",
            "vocab",
            "lm_head: vocab does not fit. It cuts nn.Embedding only, and this is Linear.",
        ),
        (
            "model.embed_tokens",
            "vocab_head",
            "model.embed_tokens: vocab_head does not fit. It cuts nn.Linear only, and this is "
            "Embedding: a layer that mixes its cut dim would need a collective of its own.",
        ),
        (
            MLP,
            {"gate_proj": "colwise:mlp?gather=true", "up_proj": "colwise:mlp"},
            "model.layers.0.mlp.gate_up_proj: packed does not fit. Its parts need different "
            "collectives; keep them in modules of their own. (1 more like it)",
        ),
    ],
)
def test_p5_a_strategy_that_does_not_fit_the_module(key: str, rule: Any, sentence: str) -> None:
    lines = mistakes(overrides={key: rule})
    group = [line for line in lines if line.startswith("P5")]
    if key == NORMS:  # four kinds of norm in layers, and the last one
        assert group[0] == "P5 " + sentence.replace(" (8 more like it)", " (1 more like it)")
        assert len(group) == 5
    else:
        assert group == ["P5 " + sentence]


def test_p6_more_ranks_than_query_heads() -> None:
    assert mistakes(9) == [
        "P6 axis 'q|kv' (num_attention_heads=8, num_key_value_heads=2): tensor=9 leaves a rank "
        "with nothing. Sizes that work: 1 to 8."
    ]


def test_p6_heads_that_form_no_groups() -> None:
    lines = mistakes(2, Config(num_attention_heads=7), axes=AXES)
    assert lines == [
        "P6 axis 'q|kv' (num_attention_heads=7, num_key_value_heads=2): 7 query heads are no "
        "multiple of 2 key/value heads. Sizes that work: none."
    ]


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


def overlapping(spans: tuple[tuple[tuple[int, int], ...], ...]) -> type[Partitioner]:
    """A faulty partitioner: what it says it allocates is not what it reads."""

    class Faulty(Partitioner):
        def cut(self, ranks: int, grain: Any) -> tuple[Partition, ...]:
            return (Partition(self.counts[0], spans, (26, 26)),)

    return Faulty


@pytest.mark.parametrize(
    ("spans", "sentence"),
    [
        (
            (((0, 30),), ((26, 52),)),
            "up_proj part of model.layers.0.mlp.gate_up_proj.weight: [26:30,0:32] is written twice "
            "on rank 0. (1 more like it)",
        ),
    ],
)
def test_p8_a_region_written_twice(
    spans: Any, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from core.parallel import checks
    from core.parallel.recipe import Fill

    plan = toy_plan(2)
    shapes = plan.shapes(0)
    rules = {rule.param(role): rule for rule in plan.rules for role in rule.roles}
    name = "model.layers.0.mlp.gate_up_proj.weight"
    twice = [*plan.recipe(0), Fill(name, ((26, 30), (0, 32)))]
    problems = checks.check_cover(twice, shapes, rules, plan.cuts, 0)
    assert [p.text for p in problems] == [sentence.removesuffix(" (1 more like it)")]


def test_p8_a_region_written_by_nothing() -> None:
    from core.parallel import checks

    plan = toy_plan(2)
    rules = {rule.param(role): rule for rule in plan.rules for role in rule.roles}
    hole = [
        op
        for op in plan.recipe(1)
        if getattr(op, "src", "") != "model.layers.1.self_attn.k_proj.weight"
    ]
    problems = checks.check_cover(hole, plan.shapes(1), rules, plan.cuts, 1)
    assert [p.text for p in problems] == [
        "k_proj part of model.layers.1.self_attn.qkv_proj.weight: [32:40,0:32] is written by "
        "nothing on rank 1."
    ]


def test_p8_a_region_outside_and_a_name_that_is_no_parameter() -> None:
    from core.parallel import checks
    from core.parallel.recipe import Fill

    recipe = [Fill("w", ((0, 4),)), Fill("v", ((0, 1),))]
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
    from core.parallel.index import check_unread

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
        MLP: {"strategy": "packed", "parts": whole},
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


def test_every_problem_is_told_at_once_in_the_order_of_the_codes() -> None:
    plan = without("lm_head") | {"model.lm_head": "vocab_head", "model.norm": "replicate"}
    lines = mistakes(
        9,
        plan=plan,
        overrides={
            "model.embed_tokens": "vocab_head",
            "model.layers.*.mlp.down_proj": "rowwize:mlp",
        },
    )
    assert [line.split()[0] for line in lines] == ["P1", "P2", "P3", "P4", "P5", "P6"]


def test_a_strategy_claimed_by_two_plugins_is_told_as_p4() -> None:
    before = registry.registries.snapshot()
    try:
        registry.sharding.register("replicate", "elsewhere.strategies:Replicate")
        lines = mistakes()
        assert lines[0].startswith("P4 rule '**.{q_norm,k_norm")
        assert "is provided by" in lines[0]
    finally:
        registry.registries.restore(before)
