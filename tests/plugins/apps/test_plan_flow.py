"""The forward pass that is drawn: its order and messages are those of a pass with numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import core.plugins
from core import registry
from core.parallel import Guard, ParallelPlan, Sharding, ThreadGroup
from core.parallel.groups import Communicator, ThreadCommunicator
from core.parallel.verify import build_rank, random_checkpoint
from plugins.apps.plan.flow import Flow, flow
from plugins.apps.plan.regions import tensor_maps
from plugins.apps.plan.rehearsal import rehearse
from tests.core.parallel.toys import NORMS, PLAN, Config, toy, toy_plan

SIZES = Path(__file__).resolve().parents[3] / "models" / "qwen3" / "sizes"
TOKENS = 5


@pytest.fixture(scope="module", autouse=True)
def _plugins() -> None:
    core.plugins.load()


def qwen3(name: str, tensor: int, **changes: Any) -> ParallelPlan:
    from models.qwen3.architecture import Qwen3

    raw = json.loads((SIZES / name / "config.json").read_text()) | changes
    return ParallelPlan.build(Qwen3, Qwen3.config(raw), tensor)


def call(model: nn.Module, ids: Tensor) -> Any:
    return model(ids)


def drawn(plan: ParallelPlan, **options: Any) -> Flow:
    index = plan.expected_index()
    return flow(plan, index, tensor_maps(plan, index), torch.bfloat16, **options)


class Counting(Communicator):
    """One rank's side of a group of threads; keeps what is summed or put together."""

    def __init__(self, inner: ThreadCommunicator) -> None:
        self.inner, self.rank, self.size = inner, inner.rank, inner.size
        self.seen: list[tuple[str, int]] = []

    def gather_all(self, x: Tensor) -> list[Tensor]:
        return self.inner.gather_all(x)

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        return self.inner.broadcast_object(value, root)

    def all_reduce(self, x: Tensor) -> Tensor:
        whole = self.inner.all_reduce(x)
        self.seen.append(("all-reduce", whole.numel() * whole.element_size() // TOKENS))
        return whole

    def all_gather(self, x: Tensor, sizes: Sequence[int] | None = None, dim: int = -1) -> Tensor:
        whole = self.inner.all_gather(x, sizes, dim)
        self.seen.append(("all-gather", whole.numel() * whole.element_size() // TOKENS))
        return whole


@pytest.mark.parametrize("tensor", [2, 3, 5])
def test_messages_are_those_of_a_pass_with_numbers(tensor: int) -> None:
    plan = toy_plan(tensor, Config(attention_bias=True))
    checkpoint = random_checkpoint(plan.expected_index("F64"))

    def rank(inner: ThreadCommunicator) -> list[tuple[str, int]]:
        comm = Counting(inner)
        with torch.inference_mode():
            build_rank(plan, comm.rank, checkpoint, comm)(torch.arange(TOKENS))
        return comm.seen

    found = [
        (send.kind, send.nbytes)
        for made in rehearse(plan, torch.float64, call)
        for send in made.sends
    ]

    assert len(found) == plan.summary().collectives
    for real in ThreadGroup(tensor).run(rank):
        assert found == real


def test_the_order_is_that_of_the_forward_pass() -> None:
    (before, layers, after) = drawn(qwen3("toy", 2)).stages

    assert [step.name for step in before.steps] == ["model.embed_tokens", "model.rotary"]
    assert (layers.label, layers.count) == ("layers 0 to 1", 2)
    assert [step.name for step in layers.steps] == [
        "input_layernorm",
        *(f"self_attn.{name}" for name in ("qkv_proj", "attention", "o_proj")),
        "post_attention_layernorm",
        *(f"mlp.{name}" for name in ("gate_up_proj", "activation", "down_proj")),
    ]
    assert [step.name for step in after.steps] == ["model.norm", "lm_head"]


def test_a_step_says_what_it_reads_sends_and_why() -> None:
    steps = {s.name: s for stage in drawn(qwen3("toy", 2)).stages for s in stage.steps}

    qkv, attention, o = (steps[f"self_attn.{name}"] for name in ("qkv_proj", "attention", "o_proj"))
    assert qkv.strategies == ("colwise:q", "colwise:kv", "colwise:kv")
    assert [t.name for t in qkv.tensors] == [
        f"model.layers.0-1.self_attn.{name}_proj.weight" for name in "qkv"
    ]
    assert (qkv.sends, qkv.shares) == ((), (8, 8))
    assert qkv.layout == ("R", "S:q S:kv")
    assert attention.uses == ("q_norm", "k_norm")
    assert [(s.kind, s.nbytes) for s in o.sends] == [("all-reduce", 8 * 2)]
    assert (o.strategies, o.layout) == (("rowwise:q",), ("S:q", "R"))
    assert [(s.kind, s.nbytes) for s in steps["lm_head"].sends] == [("all-gather", 32 * 2)]
    assert steps["lm_head"].sampled
    assert not o.sampled


@pytest.mark.parametrize(("name", "tensor"), [("Qwen3-0.6B", 3), ("Qwen3-4B", 8), ("toy", 1)])
def test_every_collective_of_the_summary_is_drawn(name: str, tensor: int) -> None:
    plan = qwen3(name, tensor)

    assert sum(stage.count for stage, _, _ in drawn(plan).messages()) == plan.summary().collectives


def test_a_tied_head_shows_the_embedding() -> None:
    head = drawn(qwen3("toy", 2, tie_word_embeddings=True)).stages[-1].steps[-1]

    assert [tensor.name for tensor in head.tensors] == ["model.embed_tokens.weight"]


def test_options_of_a_strategy_are_told() -> None:
    family = toy(plan={**PLAN, "lm_head": "vocab_head?gather=rank0"})
    plan = ParallelPlan.build(family, Config(), 2, replicate_limit=1.0)
    head = drawn(plan, forward=call).stages[-1].steps[-1]

    assert head.strategies == ("vocab_head:vocab?gather=rank0",)
    assert [send.kind for send in head.sends] == ["gather"]


def test_layers_are_drawn_apart_when_asked_for() -> None:
    stages = drawn(qwen3("toy", 2), fold=False).stages

    assert [stage.label for stage in stages] == ["", "layer 0", "layer 1", ""]


def test_a_model_that_cannot_run_without_numbers_is_shown_in_declared_order() -> None:
    def broken(model: nn.Module, ids: Tensor) -> None:
        raise RuntimeError("needs numbers")

    plan = toy_plan(2)
    found = drawn(plan, forward=broken)

    assert found.guess == "RuntimeError: needs numbers"
    assert len(list(found.messages())) == 2 + 2  # of a layer, drawn once, and of the vocabulary
    assert all(send.nbytes is None for _, _, send in found.messages())
    assert found.stages[-1].steps[-1].kind == "Linear"


class SumBefore(Guard):
    def forward(self, x: Tensor) -> Any:
        return super().forward(self._comm.all_reduce(x))  # type: ignore[misc]


class Late(Sharding):
    """Another module left partial sums; this one completes them before it computes."""

    takes_axis = False
    guard = SumBefore


def test_a_message_before_the_module_computes_is_told_from_one_after_it() -> None:
    if "late" not in registry.sharding.names():
        registry.sharding.register("late", Late)
    others = {key: value for key, value in PLAN.items() if key != NORMS}
    norms = NORMS.replace(",norm}", "}")
    family = toy(plan={**others, norms: "replicate", "model.norm": "late"})
    plan = ParallelPlan.build(family, Config(), 2, replicate_limit=1.0)
    steps = {s.name: s for stage in drawn(plan, forward=call).stages for s in stage.steps}

    assert [send.before for send in steps["model.norm"].sends] == [True]
    assert [send.before for send in steps["mlp.down_proj"].sends] == [False]
    assert (steps["model.norm"].kind, steps["mlp.down_proj"].kind) == ("RMSNorm", "Linear")


def test_a_module_that_is_whole_says_nothing_of_activations() -> None:
    steps = {s.name: s for stage in drawn(qwen3("toy", 2)).stages for s in stage.steps}

    assert steps["input_layernorm"].layout == ("", "")
    assert steps["lm_head"].layout == ("R", "R")
