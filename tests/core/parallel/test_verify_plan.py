"""The check for plan authors finds faults, and passes a strategy from another distribution."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from toys import AXES, Attention, Config, Toy, reference, toy

from core.parallel import verify_plan

ROOT = Path(__file__).parents[3]


def test_the_sizes_that_ran_are_returned_and_infeasible_ones_left_out() -> None:
    config = Config(num_attention_heads=3, num_key_value_heads=1, num_hidden_layers=1)
    assert verify_plan(toy(), config, (2, 3, 4, 8)) == [2, 3]
    with pytest.raises(AssertionError, match=r"none of the tensor sizes \(4, 8\) works"):
        verify_plan(toy(), config, (4, 8))


def test_a_model_may_be_called_in_another_way() -> None:
    class Split(Toy):
        def forward(self, ids: Tensor) -> Tensor:
            raise AssertionError("not like this")

    def forward(model: nn.Module, ids: Tensor) -> Tensor:
        return model.lm_head(model.model(ids))

    config = Config(num_hidden_layers=1)
    assert verify_plan(toy(model=Split), config, (2,), forward=forward) == [2]


class Leaky(Attention):
    """Uses a number of the whole model: right on one rank only."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (self.heads / 8)


def leaky(config: Config) -> nn.Module:
    model = Toy(config)
    for layer in model.model.layers:
        layer.self_attn = Leaky(config)
    return model


def test_a_model_that_computes_with_a_narrowed_number_is_found() -> None:
    with pytest.raises(AssertionError, match="rank 0 of 2 and one rank differ"):
        verify_plan(toy(model=leaky), Config(num_hidden_layers=1), (2,))


def test_a_reference_finds_what_both_sides_have_wrong() -> None:
    class Swapped(Toy):
        def __init__(self, c: Config) -> None:
            super().__init__(c)
            attention = self.model.layers[0].self_attn
            attention.q_norm, attention.k_norm = attention.k_norm, attention.q_norm
            # names follow attributes, so this alone is no fault: the forward swaps as well
            attention.forward = lambda x, a=attention: Attention.forward(a, -x)

    config = Config(num_hidden_layers=1)
    family = toy(model=Swapped, axes=AXES)
    verify_plan(family, config, (2,))
    with pytest.raises(AssertionError, match="one rank and the reference differ"):
        verify_plan(family, config, (2,), reference=lambda w, ids: reference(config, w, ids))


SEQUENCE = '''
"""Sequence parallelism: activations between blocks are cut by tokens."""

import torch
from core.hooks import hookimpl


@hookimpl
def register(registries):
    for name in ("ColwiseTokens", "RowwiseTokens", "VocabTokens", "HeadTokens"):
        registries.sharding.register(name, f"plait_sequence_strategies:{name}")
'''
STRATEGIES = """
import torch
from core.parallel import Guard, Sharding
from core.parallel.groups import rows_of


class Gather(Guard):
    def forward(self, x):
        return super().forward(self._comm.all_gather(x, dim=0))


class Scatter(Guard):
    def forward(self, x):
        return self._comm.reduce_scatter(super().forward(x))


class Lookup(Guard):
    def bind(self, comm, cuts, options):
        super().bind(comm, cuts, options)
        self._span = (cuts[0].spans[comm.rank] or ((0, 0),))[0]

    def forward(self, ids):
        first, last = self._span
        mine = (ids >= first) & (ids < last)
        rows = super().forward(torch.where(mine, ids - first, 0))
        return self._comm.reduce_scatter(torch.where(mine.unsqueeze(-1), rows, 0))


class Head(Guard):
    def bind(self, comm, cuts, options):
        super().bind(comm, cuts, options)
        self._full = cuts[0].size

    def forward(self, x):
        logits = super().forward(self._comm.all_gather(x, dim=0))
        return self._comm.all_gather(logits)[..., : self._full]


def strategy(dim, mixin, axis=None):
    class Made(Sharding):
        default_axis = axis
        dims = property(lambda self: {dim: self.axis})
        guard = property(lambda self: mixin)

        def owner(self, role):
            return 0 if dim == "in" and role == "bias" else None

    return Made


ColwiseTokens = strategy("out", Gather)
RowwiseTokens = strategy("in", Scatter)
VocabTokens = strategy("out", Lookup, "vocab")
HeadTokens = strategy("out", Head, "vocab")
"""
RUN = """
import sys
from core.plugins import load
load()
from toys import Config, PLAN, reference, toy
from core.parallel import verify_plan
plan = dict(PLAN)
tokens = {"colwise": "ColwiseTokens", "rowwise": "RowwiseTokens"}
for key, value in PLAN.items():
    if isinstance(value, dict):
        plan[key] = {s: v.replace("colwise", "ColwiseTokens") for s, v in value.items()}
    elif value.startswith("rowwise"):
        plan[key] = value.replace("rowwise", "RowwiseTokens")
plan["model.embed_tokens"], plan["lm_head"] = "VocabTokens", "HeadTokens"
config = Config()
ran = verify_plan(toy(plan=plan), config, (2, 3, 4, 8), tokens=24,
                  reference=lambda w, ids: reference(config, w, ids))
print(ran)
"""


def test_a_strategy_from_another_distribution(tmp_path: Path) -> None:
    """Sequence parallelism: four mixins found by entry point, and no change elsewhere."""
    (tmp_path / "plait_sequence.py").write_text(SEQUENCE)
    (tmp_path / "plait_sequence_strategies.py").write_text(STRATEGIES)
    info = tmp_path / "plait_sequence-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plait-sequence\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[plait]\nsequence = plait_sequence\n")
    paths = [str(tmp_path), str(ROOT), str(Path(__file__).parent)]
    run = subprocess.run(
        [sys.executable, "-c", RUN],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout == "[2, 3, 4, 8]\n", run.stderr


def test_one_rank_is_the_reference_in_float64() -> None:
    config = Config(tie_word_embeddings=True)
    torch.manual_seed(0)
    verify_plan(toy(), config, (1,), reference=lambda w, ids: reference(config, w, ids))
