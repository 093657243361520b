"""A check that authors of models and strategies run in their own tests: N ranks equal one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from core.parallel.facts import allocate
from core.parallel.formats import Quantization
from core.parallel.groups import Communicator, ThreadGroup
from core.parallel.guards import guard
from core.parallel.index import Index
from core.parallel.loading import load, unshard
from core.parallel.plan import ParallelPlan
from core.parallel.sources import TORCH_TYPES, DictSource
from core.parallel.syntax import PlanDict

Forward = Callable[[nn.Module, Tensor], Tensor]  # model, token ids [T] -> logits [T, V]
Reference = Callable[[Mapping[str, Tensor], Tensor], Tensor]  # checkpoint, ids -> logits [T, V]


def plain_forward(model: nn.Module, ids: Tensor) -> Tensor:
    """Call the model with token ids."""
    logits: Tensor = model(ids)
    return logits


def random_checkpoint(index: Index, seed: int = 0) -> dict[str, Tensor]:
    """Random tensors with the shapes of an index, on a scale that keeps activations near one.

    Vectors called weight (norms) lie around 1, so that a misplaced norm shows.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, (shape, dtype) in index.items():
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        if len(shape) > 1:
            values /= math.sqrt(shape[-1])
        elif name.endswith("weight"):
            values = 1 + 0.2 * values
        tensors[name] = values.to(TORCH_TYPES[dtype])
    return tensors


def build_rank(
    plan: ParallelPlan, rank: int, checkpoint: Mapping[str, Tensor], comm: Communicator | None
) -> nn.Module:
    """One rank as a worker makes it, from tensors in memory, in float64 on the CPU."""
    source = DictSource(checkpoint)
    plan.check(source.index(), source, rank)
    model = allocate(plan.local_model(rank), "cpu", torch.float64)
    params = dict(model.named_parameters())
    load(plan.recipe(rank, source.index()), params, source)
    return guard(model.eval(), plan, rank, comm)


def verify_plan(
    architecture: Any,
    config: Any,
    tp: Sequence[int] = (2, 3, 4, 8),
    *,
    overrides: PlanDict | None = None,
    formats: Quantization | None = None,
    forward: Forward = plain_forward,
    reference: Reference | None = None,
    tokens: int = 24,
    vocabulary: int | None = None,
    tolerance: float = 1e-9,
    seed: int = 0,
) -> list[int]:
    """Check that every tensor size gives what one rank gives, and gives the checkpoint back.

    Ranks are threads, weights random float64. `config` should be tiny and awkward: an odd
    vocabulary, sizes that no tensor size divides, biases on. Sizes in `tp` that the plan says are
    infeasible are left out; the sizes that ran are returned. Plugins must be loaded.

    Both sides load through the same plan, so an order of packed parts that differs from the
    model's goes unseen. Pass `reference`, an implementation of the model from outside that takes
    checkpoint tensors and ids, to find that, too. Raises AssertionError, or UserError for a
    broken plan.
    """

    def build(size: int) -> ParallelPlan:
        return ParallelPlan.build(
            architecture, config, size, overrides, formats, replicate_limit=1.0
        )

    single = build(1)
    checkpoint = random_checkpoint(single.expected_index("F64"), seed)
    top = vocabulary or int(config.vocab_size)
    ids = torch.randint(0, top, (tokens,), generator=torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        expected = forward(build_rank(single, 0, checkpoint, None), ids)
        if reference is not None:
            _close(expected, reference(checkpoint, ids), tolerance, "one rank and the reference")
    works = set(single.feasible())
    ran = [size for size in tp if size in works]
    assert ran, f"none of the tensor sizes {tuple(tp)} works; these do: {sorted(works)}"
    for size in ran:
        plan = build(size)

        def rank(comm: Communicator, plan: ParallelPlan = plan) -> tuple[Tensor, dict[str, Tensor]]:
            model = build_rank(plan, comm.rank, checkpoint, comm)
            with torch.inference_mode():
                return forward(model, ids), model.state_dict()

        logits, states = zip(*ThreadGroup(size).run(rank), strict=True)
        for number, found in enumerate(logits):
            if found.numel():
                _close(found, expected, tolerance, f"rank {number} of {size} and one rank")
        _same(unshard(plan, states), checkpoint, size)
    return ran


def _close(found: Tensor, expected: Tensor, tolerance: float, who: str) -> None:
    torch.testing.assert_close(
        found, expected, rtol=tolerance, atol=tolerance, msg=lambda text: f"{who} differ: {text}"
    )


def _same(found: Mapping[str, Tensor], checkpoint: Mapping[str, Tensor], size: int) -> None:
    assert set(found) == set(checkpoint), sorted(set(found) ^ set(checkpoint))
    for name, tensor in checkpoint.items():
        assert torch.equal(found[name], tensor), f"{name} does not come back from {size} ranks"
