"""The flow of one forward pass: its steps in order, their strategies, weights and collectives."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.parallel.folding import layer_of
from core.parallel.problems import ranges
from core.parallel.recipe import reads
from plugins.apps.plan.regions import TensorMap
from plugins.apps.plan.rehearsal import Call, Collective, Forward, rehearse

if TYPE_CHECKING:
    import torch

    from core.parallel import Index, ParallelPlan
    from core.parallel.rules import Rule

log = logging.getLogger("plait")


@dataclass(frozen=True)
class Step:
    """A module of the pass."""

    name: str  # without the layer's own prefix
    kind: str  # its class
    strategies: tuple[str, ...]  # of each part; empty for a module without parameters
    tensors: tuple[TensorMap, ...]  # the checkpoint tensors behind all parameters that it uses
    uses: tuple[str, ...]  # modules that it is handed for their parameters
    sends: tuple[Collective, ...]
    sampled: bool  # it sees only tokens whose logits are wanted
    layout: tuple[str, str]  # activations in and out, as `Sharding.layout` says; empty: unchanged
    shares: tuple[int, ...]  # of the ranks in the output, when it is cut

    @property
    def parent(self) -> str:
        """The name but for its last component."""
        return self.name.rpartition(".")[0]

    @property
    def own(self) -> str:
        """The last component of the name."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True)
class Stage:
    """Steps that follow one another: outside of layers, or of layers that are alike."""

    label: str  # "layers 0 to 27", or nothing
    count: int
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Flow:
    """One forward pass. `guess` says why its order is not known, where it is not."""

    stages: tuple[Stage, ...]
    guess: str = ""

    def messages(self) -> Iterable[tuple[Stage, Step, Collective]]:
        """Every collective; one of a stage happens `stage.count` times."""
        for stage in self.stages:
            for step in stage.steps:
                for send in step.sends:
                    yield stage, step, send


def flow(
    plan: ParallelPlan,
    index: Index,
    maps: Sequence[TensorMap],
    dtype: torch.dtype,
    *,
    fold: bool = True,
    forward: Forward | None = None,
) -> Flow:
    """Rehearse a pass. Where the model cannot run without numbers, take the order of its modules.

    `dtype`: of the activations; `forward`: how to call a model that takes no `Batch`.
    """
    guess = ""
    try:
        calls = rehearse(plan, dtype, forward)
    except Exception as error:  # whatever a model's own code raises: the page can do without
        guess = f"{type(error).__name__}: {error}"
        log.warning("the forward pass could not be rehearsed without weights: %s", guess)
        calls = _declared(plan)
    rules = {rule.module: rule for rule in plan.rules}
    behind = _behind(plan, index, maps)
    runs: list[tuple[int | None, list[Call]]] = []
    for call in calls:
        layer = layer_of(call.module + ".")
        if not runs or runs[-1][0] != layer:
            runs.append((layer, []))
        runs[-1][1].append(call)
    stages: list[tuple[list[int], tuple[Step, ...]]] = []
    for layer, group in runs:
        steps = tuple(_step(plan, call, layer, rules, behind) for call in group)
        last = stages[-1] if stages else None
        if fold and last and layer is not None and last[0] and last[1] == steps:
            last[0].append(layer)
        else:
            stages.append(([] if layer is None else [layer], steps))
    return Flow(tuple(_stage(layers, steps) for layers, steps in stages), guess)


def _stage(layers: list[int], steps: tuple[Step, ...]) -> Stage:
    if not layers:
        return Stage("", 1, steps)
    return Stage(f"layer{'s' * (len(layers) > 1)} {ranges(layers)}", len(layers), steps)


def _step(
    plan: ParallelPlan,
    call: Call,
    layer: int | None,
    rules: Mapping[str, Rule],
    behind: Mapping[str, tuple[TensorMap, ...]],
) -> Step:
    name = call.module
    if layer is not None:
        name = f"{name}.".partition(f".{layer}.")[2].rstrip(".") or name
    rule = rules.get(call.module)
    return Step(
        name=name,
        kind=call.kind,
        strategies=strategies(rule) if rule is not None else (),
        tensors=tuple(t for name in (call.module, *call.uses) for t in behind.get(name, ())),
        uses=tuple(used.rpartition(".")[2] for used in call.uses),
        sends=tuple(call.sends),
        sampled=call.sampled,
        layout=rule.strategy.layout() if rule is not None and _touches(rule) else ("", ""),
        shares=_shares(plan, rule) if rule is not None else (),
    )


def _touches(rule: Rule) -> bool:
    """Whether activations change; a module that is whole leaves those of each rank as they are."""
    return rule.strategy.guard is not None or any(part.strategy.dims for part in rule.parts)


def _shares(plan: ParallelPlan, rule: Rule) -> tuple[int, ...]:
    """Elements (or tokens) of a module's output on each rank; nothing when it is not cut."""
    found = []
    for part in rule.parts:
        kind, _, axis = part.strategy.layout()[1].partition(":")
        if kind == "S" and axis in plan.cuts:
            found.append(plan.cuts[axis].local)
        elif kind == "T":
            return (1,) * plan.tensor
    return tuple(sum(local) for local in zip(*found, strict=True))


def strategies(rule: Rule) -> tuple[str, ...]:
    """The strategy of each part as the plan writes it: `colwise:q`."""
    found = []
    for spec, part in zip(rule.spec.parts, rule.parts, strict=True):
        axis = f":{part.strategy.axis}" if part.strategy.axis else ""
        options = "&".join(f"{name}={value}" for name, value in spec.options.items())
        found.append(f"{spec.strategy}{axis}{'?' * bool(options)}{options}")
    return tuple(found)


def _behind(
    plan: ParallelPlan, index: Index, maps: Sequence[TensorMap]
) -> dict[str, tuple[TensorMap, ...]]:
    """The tensors behind the parameters of each module, tied ones under both of their modules."""
    by_name = {name: tensor for tensor in maps for name in tensor.names}
    params: dict[str, list[str]] = {}
    for second, first in plan.ties.items():
        params.setdefault(first, [first]).append(second)
    found: dict[str, dict[str, TensorMap]] = {}
    for rank in range(plan.tensor):
        for op in plan.recipe(rank, index):
            for name, _ in reads(op):
                for param in params.get(op.dst, [op.dst]):
                    tensor = by_name[name]
                    found.setdefault(param.rpartition(".")[0], {})[tensor.name] = tensor
    return {module: tuple(tensors.values()) for module, tensors in found.items()}


def _declared(plan: ParallelPlan) -> list[Call]:
    """The modules in the order of the model's declarations, with the guards that they have."""
    calls = []
    model = plan.skeleton(0)
    for rule in plan.rules:
        kind = type(model.get_submodule(rule.module)).__name__
        guard = rule.strategy.guard if plan.tensor > 1 else None
        sends = [Collective(guard.__name__, None)] * guard.collectives if guard else []
        calls.append(Call(rule.module, kind, sends=sends))
    return calls
