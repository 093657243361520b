"""Checks of names and cuts, P1 to P7: the exact sentence of each, and all of them at once."""

from __future__ import annotations

from typing import Any

import pytest
from toys import AXES, GATE_UP, NORMS, PLAN, Config, mistakes

from core import registry
from core.parallel import Sharding, axis, even, gqa


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in PLAN.items() if name != key}


def test_p1_a_rule_that_matches_nothing() -> None:
    plan = PLAN | {"model.layers.*.mlp.gat_up_proj": "colwise:mlp"}
    assert mistakes(plan=plan) == [
        "P1 rule 'model.layers.*.mlp.gat_up_proj' matches no module that owns parameters. Did you "
        "mean 'model.layers.*.mlp.gate_up_proj'?"
    ]


def test_p2_a_module_without_a_rule_told_once_for_all_layers() -> None:
    assert mistakes(plan=without(GATE_UP)) == [
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
            "no setting 'units'. Did you mean 'unit'? Settings: align, unit.",
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
    assert mistakes(overrides={GATE_UP: {"gate_proj": "replicate", "up_proj": "replicate"}}) == [
        f"P4 rule {GATE_UP!r}: no axis says how large gate_proj, up_proj are on 'out'; give each a "
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
            GATE_UP,
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


@pytest.mark.parametrize(
    ("key", "dims", "sentence"),
    [
        (
            "lm_head",
            {"rows": "vocab"},
            "lm_head: lost does not fit. It cuts 'rows', and the module has 'in', 'out': every "
            "rank would hold all of it. Correct the strategy's dims, or replicate this weight.",
        ),
        (
            NORMS,
            {"in": "mlp", "inner": "mlp"},
            "model.layers.0.self_attn.q_norm: lost does not fit. It cuts 'in', 'inner', and the "
            "module has 'out': every rank would hold all of it. Correct the strategy's dims, or "
            "replicate this weight. (1 more like it)",
        ),
    ],
)
def test_p5_a_strategy_that_cuts_no_dim_of_the_module(
    key: str, dims: dict[str, str], sentence: str
) -> None:
    class Lost(Sharding):
        @property
        def dims(self) -> dict[str, str]:
            return dims

    before = registry.registries.snapshot()
    try:
        registry.sharding.register("lost", Lost)
        lines = mistakes(overrides={key: "lost:mlp"})
    finally:
        registry.registries.restore(before)
    assert next(line for line in lines if line.startswith("P5")) == f"P5 {sentence}"


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
        with registry.provided_by(registry.Provider("else", "plait-else 1.0", "else")):
            registry.sharding.register("replicate", "elsewhere.strategies:Replicate")
        lines = mistakes()
        assert lines[0].startswith("P4 rule '**.{q_norm,k_norm")
        assert "is provided by" in lines[0]
    finally:
        registry.registries.restore(before)
