"""Seeded bugs: each one must be noticed by a small battery, which shows that the tests can fail."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch
from stored_formats import fp8_block
from stored_toys import Sizes, Stored, expand, family, shards
from toys import Config, checkpoint, reference, toy, toy_plan

from core.errors import UserError
from core.parallel import DictSource, ParallelPlan, checks, compiler, index, rules, verify_plan
from core.parallel import axes as axes_module
from core.parallel.logits import CutLogits
from plugins.sharding import linear, partitions, vocabulary


def whole_model() -> None:
    """N ranks equal the reference and give the checkpoint back: T3, T4 and T8."""
    for config in (
        Config(num_hidden_layers=1, mlp_bias=True),
        Config(num_hidden_layers=1, num_attention_heads=6, vocab_size=9, intermediate_size=7),
    ):
        verify_plan(
            toy(), config, (2, 3, 5), reference=lambda w, ids, c=config: reference(c, w, ids)
        )


def blocks() -> None:
    """FP8 shards times their scales are slices of the whole, or are refused: T5."""
    for cut, block, ranks in ((26, 8, 2), (24, 8, 3), (8, 8, 2), (20, 8, 2)):
        plan = ParallelPlan.build(
            family("colwise"), Sizes(cut, 8), ranks, formats=Stored(fp8_block(block, block))
        )
        weight = torch.randn(cut, 8, dtype=torch.float64)
        scale = torch.rand(-(-cut // block), 1, dtype=torch.float64)
        whole = weight * expand(scale, cut, 8, block)
        found = shards(plan, {"w.weight": weight, "w.weight_scale_inv": scale})
        for rank, params in enumerate(found):
            ((start, stop),) = plan.cuts["a"].spans[rank]
            local = expand(params["w.weight_scale_inv"], stop - start, 8, block)
            assert torch.equal(params["w.weight"] * local, whole[start:stop])


def refused(attempt: Callable[[], object], code: str) -> None:
    with pytest.raises(UserError, match=code):
        attempt()


def refusals() -> None:
    """What must not pass: a shared block, a hole, an unread tensor, tied weights that differ."""
    two = family("colwise", parts=("gate", "up"))
    formats = Stored(fp8_block())
    refused(lambda: ParallelPlan.build(two, Sizes(128, 128), 2, formats=formats), "P7")
    refused(lambda: ParallelPlan.build(two, Sizes(384, 128), 5, formats=formats), "P6")
    config = Config(tie_word_embeddings=True)
    plan, weights = toy_plan(2, config), checkpoint(config)
    extra = DictSource(weights | {"extra.weight": torch.ones(1)})
    refused(lambda: plan.check(extra.index()), "P10")
    head = DictSource(weights | {"lm_head.weight": weights["model.embed_tokens.weight"] + 1})
    refused(lambda: plan.check(head.index(), head), "P11")
    hole = [op for op in plan.recipe(0) if "k_proj" not in getattr(op, "src", "")]
    by_param = {rule.param(role): rule for rule in plan.rules for role in rule.roles}
    assert checks.check_cover(hole, plan.shapes(0), by_param, plan.cuts, 0)
    assert index.check_unread([plan.recipe(0)], {}, extra.index(), ["extra.*"], {})
    overrides = {
        "model.layers.*.mlp.down_proj": "replicate",
        "model.layers.*.mlp.gate_up_proj": "replicate",
    }
    refused(
        lambda: toy_plan(2, overrides=overrides, replicate_limit=0.01),
        "P12",
    )


def padding() -> None:
    """Nothing real lies behind padding: T1."""
    (cut,) = partitions.Vocab([9], partitions.Vocab.Options()).cut(4, [1])
    assert cut.spans == (((0, 3),), ((3, 6),), ((6, 9),), ())


BATTERY = (whole_model, blocks, refusals, padding)

BUGS: list[tuple[Any, str, str, str]] = [
    (linear.Rowwise, "owner", "0 if", "None if"),
    (linear.Rowwise, "dims", '"in"', '"out"'),
    (linear.AllReduce, "forward", "self._comm.all_reduce", ""),
    (vocabulary.MaskedLookup, "forward", "torch.where(mine.unsqueeze(-1), rows, 0)", "rows"),
    (vocabulary.MaskedLookup, "forward", "ids < self._last", "ids <= self._last"),
    (CutLogits, "whole", "reordered(", "(lambda x, order: x)("),
    (partitions.Gqa, "_shared", "kv.append(((head, head + 1),))", "kv.append(((0, 1),))"),
    (partitions.Gqa, "_shared", "head * group + start, head * group + stop", "start, stop"),
    (partitions.Vocab, "cut", "min(rank * chunk, size)", "rank * size // ranks"),
    (partitions, "even_spans", "at = stop", "at = min(stop + 1, size)"),
    (compiler, "_fill", "piece.offset if i == fused else 0", "0"),
    (compiler, "_fill", "owner is not None and owner != rank", "False"),
    (compiler, "_fill", "if data < piece.local[i]:", "if False:"),
    (rules, "_locate", "cuts[axis].spans[rank], ", "cuts[axis].spans[0], "),
    (rules, "_locate", "not last and allocated % divisor", "False"),
    (rules, "pieces", "offset += piece.local[fused] if fused is not None else 0", "pass"),
    (axes_module, "stored", "-(-stop // divisor)", "stop // divisor"),
    (axes_module, "stored", "return None", "return start // divisor, -(-stop // divisor)"),
    (checks, "check_cover", "!= math.prod(size)", "> math.prod(size)"),
    (checks, "check_replicated", "if share <= limit:", "if True:"),
    (index, "check_unread", "name not in twins and", "False and"),
    (index, "check_unread", "if gap is not None:", "if False:"),
]  # fmt: skip


def mutate(monkeypatch: pytest.MonkeyPatch, home: Any, name: str, old: str, new: str) -> None:
    """Replace text in a function's source, everywhere that the function is known."""
    found = inspect.getattr_static(home, name)
    function = found.fget if isinstance(found, property) else found
    source = textwrap.dedent(inspect.getsource(function))
    assert old in source, f"{name} no longer contains {old!r}"
    module = inspect.getmodule(function)
    scope = dict(vars(module))
    code = source.replace(old, new)
    if inspect.isclass(home):
        # a body of its own, so that super() finds the class
        code = "def outer(__class__):\n" + textwrap.indent(code, "    ") + f"    return {name}\n"
        exec(compile(code, "<mutant>", "exec", dont_inherit=True), scope)
        mutant = scope["outer"](home)
        mutant = mutant.fget if isinstance(mutant, property) else mutant
        monkeypatch.setattr(home, name, property(mutant) if isinstance(found, property) else mutant)
        return
    exec(compile(code, "<mutant>", "exec", dont_inherit=True), scope)
    for path, other in list(sys.modules.items()):
        ours = path.startswith(("core.parallel", "plugins.sharding"))
        if ours and vars(other).get(name) is function:
            monkeypatch.setattr(other, name, scope[name])


def test_the_battery_passes_without_bugs() -> None:
    for check in BATTERY:
        check()


def test_functions_compiled_again_without_a_bug_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what is noticed is the bug, and not how it was put there."""
    for home, name, old, _ in {(str(b[0]), b[1]): b for b in BUGS}.values():
        mutate(monkeypatch, home, name, old, old)
    for check in BATTERY:
        check()


@pytest.mark.parametrize(("home", "name", "old", "new"), BUGS, ids=lambda value: str(value)[:40])
def test_a_seeded_bug_is_noticed(
    home: Any, name: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch, home, name, old, new)
    torch.manual_seed(0)
    for check in BATTERY:
        try:
            check()
        except (Exception, pytest.fail.Exception):
            return
    pytest.fail(f"nobody noticed {name}: {old!r} -> {new!r}")
