"""Plan values parse, long and short alike; patterns match names and nothing more."""

from __future__ import annotations

import pytest

from core.parallel.matching import match, matches
from core.parallel.syntax import Malformed, parse_plan, parse_rule


def test_a_string_is_strategy_axis_and_options() -> None:
    (part,) = parse_rule("x", "rowwise:mlp?reduce=defer").parts
    assert (part.strategy, part.axis, part.options) == ("rowwise", "mlp", {"reduce": "defer"})


def test_a_dict_is_packed_in_its_order() -> None:
    rule = parse_rule("x", {"up": "colwise:mlp", "gate": "colwise:mlp"})
    assert (rule.strategy, rule.composite) == ("packed", True)
    assert [part.source for part in rule.parts] == ["up", "gate"]


def test_the_long_form_of_packed_equals_the_short_one() -> None:
    long = {
        "strategy": "packed",
        "dim": "out",
        "on_disk": "split",
        "parts": [
            {"source": "q_proj", "strategy": "colwise", "axis": "q"},
            {"source": "k_proj", "strategy": "colwise:kv"},
        ],
    }
    short = {"q_proj": "colwise:q", "k_proj": "colwise:kv"}
    assert parse_rule("x", long) == parse_rule("x", short)


def test_the_long_form_of_one_part_equals_the_string() -> None:
    long = {"strategy": "rowwise", "axis": "mlp", "reduce": "none"}
    assert parse_rule("x", long) == parse_rule("x", "rowwise:mlp?reduce=none")


@pytest.mark.parametrize(
    ("value", "clause"),
    [
        (7, "7 is neither a string nor a dict"),
        ({}, "{} is neither a string nor a dict"),
        ("col wise", "'col wise' does not read strategy[:axis][?name=value]"),
        ("colwise:q?gather", "'gather' in 'colwise:q?gather' does not read name=value"),
        ({"q": 3}, "the part 'q' is 3, not a string"),
        ({"strategy": "colwise:q", "on_disk": "fused"}, "'on_disk' needs 'parts' beside it"),
        (
            {"strategy": "packed", "parts": [{"source": "q"}]},
            "the part {'source': 'q'} lacks 'source' or 'strategy'",
        ),
        (
            {"strategy": "packed", "parts": [], "ondisk": "fused"},
            "'ondisk' is not a setting beside 'parts'. Did you mean 'on_disk'?",
        ),
        (
            {"strategy": "packed", "parts": [], "on_disk": "mixed"},
            "on_disk is 'mixed'; it can be split, fused or interleaved:N",
        ),
        (
            {"strategy": "packed", "parts": [], "on_disk": "interleaved:2", "source": "a"},
            "on_disk is interleaved:2 but there are 0 parts",
        ),
        (
            {"strategy": "packed", "parts": [], "on_disk": "fused"},
            "on_disk: fused needs 'source', the name of the one checkpoint module",
        ),
    ],
)
def test_a_malformed_value_says_what_is_wrong(value: object, clause: str) -> None:
    with pytest.raises(Malformed) as caught:
        parse_rule("x", value)
    assert str(caught.value) == clause


def test_an_override_replaces_a_rule_and_an_unknown_one_names_the_nearest() -> None:
    plan = {"lm_head": "vocab_head", "norm": "replicate"}
    rules, problems = parse_plan(plan, {"lm_head": "replicate", "lm_haed": "replicate"})
    assert rules["lm_head"].strategy == "replicate"
    assert [p.text for p in problems] == [
        "parallel.plan has no rule 'lm_haed' to replace. Did you mean 'lm_head'? "
        "Rules: lm_head, norm."
    ]


@pytest.mark.parametrize(
    ("glob", "name", "fits"),
    [
        ("model.layers.*.mlp", "model.layers.3.mlp", True),
        ("model.layers.*.mlp", "model.layers.3.x.mlp", False),
        ("model.layers.*.mlp", "my.model.layers.3.mlp", False),
        ("model.layers.*.mlp", "model.layers.3.mlp.gate", False),
        ("**.norm", "model.norm", True),
        ("**.norm", "model.layers.0.norm", True),
        ("**.norm", "norm", False),
        ("**.{norm,q_norm}", "model.q_norm", True),
        ("**.{norm,q_norm}", "model.k_norm", False),
        ("a.b", "aXb", False),
    ],
)
def test_patterns_are_anchored_and_dots_are_literal(glob: str, name: str, fits: bool) -> None:
    assert matches([glob], name) is fits


@pytest.mark.parametrize(
    ("glob", "clause"),
    [
        ("a.{b,c", "a brace is not closed, or nested"),
        ("a.***.b", "'***' is neither * nor **"),
    ],
)
def test_a_malformed_pattern_is_told(glob: str, clause: str) -> None:
    _, problems = match([glob], ["a.b"])
    assert problems[0].text == f"rule {glob!r} is not a pattern: {clause}."
