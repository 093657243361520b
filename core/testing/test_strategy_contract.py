"""What every sharding strategy must do; run for each `--sharding`, on layers of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from torch import nn

from core.parallel import Guard, Sharding
from core.parallel.strategy import fill_options
from core.registry import registries
from core.testing.session import name_of
from core.testing.sharding import Layer, Sizes, UnknownLayout, text, variants, verify_layer

Strategy = type[Sharding]

RANKS = (2, 3, 4, 5, 8)
KINDS = ("linear", "embedding", "experts")
PARTS = (("a", "a"), ("q", "kv", "kv"), ("a", "q"))


def instances(strategy: Strategy) -> Iterator[tuple[Sharding, str]]:
    """The strategy on each axis and with each option, and the text of a plan that makes it so."""
    axes: tuple[str | None, ...] = (None,)
    if strategy.takes_axis and strategy.default_axis is None:
        axes = ("a", "q", "kv")
    for axis in axes:
        for options in variants(strategy.Options):
            made = strategy(axis or strategy.default_axis, fill_options(strategy.Options, options))
            if axis == "kv" and "in" in made.dims:
                continue  # its heads may have copies, whose sums would count twice
            yield made, text(name_of(registries.sharding, strategy), axis, options)


def layers(strategy: Strategy) -> list[tuple[Sharding, Layer]]:
    """Every layer that the strategy accepts."""
    return list(_packed(strategy) if strategy.composite else _plain(strategy))


def _plain(strategy: Strategy) -> Iterator[tuple[Sharding, Layer]]:
    for made, rule in instances(strategy):
        for kind in KINDS:
            for bias in (True, False) if kind == "linear" else (False,):
                outs = (made.dims.get("out"),)
                layer = Layer(kind, rule, outs, made.dims.get("in"), bias)
                if made.accepts(layer.module(Sizes())) is None:
                    yield made, layer


def _packed(strategy: Strategy) -> Iterator[tuple[Sharding, Layer]]:
    """Parts that are columns of one linear layer, as built-in strategies cut them."""
    colwise = registries.sharding.get("colwise")
    for options in variants(colwise.Options):
        for axes in PARTS:
            parts = [colwise(axis, fill_options(colwise.Options, options)) for axis in axes]
            made = strategy(None, fill_options(strategy.Options, {}), parts)
            rule = {
                "strategy": name_of(registries.sharding, strategy),
                "parts": [
                    {"source": f"part{i}", "strategy": text("colwise", axis, options)}
                    for i, axis in enumerate(axes)
                ],
            }
            layer = Layer("linear", rule, axes)
            if made.accepts(layer.module(Sizes())) is None:
                yield made, layer


def test_there_are_layers_that_it_cuts(
    strategy: Strategy, refused: Callable[[list[str]], None]
) -> None:
    if not layers(strategy):
        refused([f"it accepts none of these layers: {', '.join(KINDS)}"])


@pytest.mark.parametrize("ranks", RANKS)
def test_any_number_of_ranks_computes_what_one_does(strategy: Strategy, ranks: int) -> None:
    """Every weight is tiled, comes back bit for bit, and each step's outputs are one rank's."""
    unknown, ran = set(), 0
    for made, layer in layers(strategy):
        if not layer.works(ranks):
            continue
        try:
            verify_layer(layer, ranks, made)
            ran += 1
        except UnknownLayout as error:
            unknown.add(str(error))
        except Exception as error:
            error.add_note(f"the plan entry is {layer.rule!r}, for {layer.module(Sizes())}")
            raise
    if not ran:
        pytest.skip(
            f"its layout is {', '.join(sorted(unknown))}" if unknown else f"not for {ranks} ranks"
        )


def test_what_it_says_about_itself(strategy: Strategy) -> None:
    for made, layer in layers(strategy):
        assert set(made.dims) <= {"out", "in", "expert"}
        assert made.guard is None or issubclass(made.guard, Guard)
        assert all(isinstance(word, str) for word in made.layout())
        assert len(made.layout()) == 2
        assert made.owner("weight") is None, (
            "only partial sums have an owner, and weights make them"
        )
        assert made.owner("bias") in (None, 0), layer.rule


@pytest.mark.parametrize(
    "module", [nn.Linear(2, 2), nn.Embedding(2, 2), nn.LayerNorm(2), nn.Conv1d(2, 2, 1), nn.ReLU()]
)
def test_what_it_does_not_cut_it_refuses_in_words(strategy: Strategy, module: nn.Module) -> None:
    if strategy.composite:
        pytest.skip("its parts say what it cuts")
    for made, _ in instances(strategy):
        reason = made.accepts(module)
        assert reason is None or (isinstance(reason, str) and reason.strip())
