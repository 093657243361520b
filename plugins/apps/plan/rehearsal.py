"""A forward pass without numbers: in which order modules run, and what they send to other ranks.

Rank 0's narrower model runs on the meta device, with its guards. Kernels and attention give
tensors of the right shape and nothing more, and the group of ranks only writes down what it is
asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from core.interfaces import AttentionBackend, Kernels
from core.layers import Attention, bind
from core.parallel import Communicator, Guard, allocate, guard
from core.types import AttentionMetadata, Batch, KVLayer

if TYPE_CHECKING:
    from torch import Tensor, nn

    from core.parallel import ParallelPlan

Forward = Callable[["nn.Module", "Tensor"], Any]  # model, token ids [T]


@dataclass(frozen=True)
class Collective:
    """One message of the group; `nbytes` is the tensor that is summed or put together."""

    kind: str  # all-reduce, all-gather, ...
    nbytes: int | None  # a token; None: unknown
    before: bool = False  # the module computes


@dataclass
class Call:
    """A module that ran."""

    module: str  # its name
    kind: str  # its class, without the guard
    sends: list[Collective] = field(default_factory=list)
    uses: list[str] = field(default_factory=list)  # modules that it was handed
    sampled: bool = False  # it sees sampled tokens alone


class Notes(Communicator):
    """A group of ranks that are not there: answers have the right shape, and calls are noted."""

    def __init__(self, size: int, note: Callable[[str, Tensor], None]) -> None:
        self.rank, self.size, self._note = 0, size, note

    def gather_all(self, x: Tensor) -> list[Tensor]:
        self._note("exchange", torch.cat([x.flatten()] * self.size))
        return [x] * self.size

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        return value

    def all_reduce(self, x: Tensor) -> Tensor:
        self._note("all-reduce", x)
        return x

    def all_gather(self, x: Tensor, sizes: Sequence[int] | None = None, dim: int = -1) -> Tensor:
        return self._together("all-gather", x, sizes, dim)

    def gather(
        self, x: Tensor, sizes: Sequence[int] | None = None, root: int = 0, dim: int = -1
    ) -> Tensor:
        return self._together("gather", x, sizes, dim)

    def reduce_scatter(self, x: Tensor) -> Tensor:
        self._note("reduce-scatter", x)
        return x[: -(-len(x) // self.size)]

    def _together(self, kind: str, x: Tensor, sizes: Sequence[int] | None, dim: int) -> Tensor:
        shape = list(x.shape)
        shape[dim] = sum(sizes) if sizes is not None else shape[dim] * self.size
        whole = x.new_empty(shape)
        self._note(kind, whole)
        return whole


class Shapes(Kernels):
    """Kernels that compute nothing."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return x

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        return x, residual

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return gate_up[..., : gate_up.shape[-1] // 2]

    def rope_store(self, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        return q, k


class NoAttention(AttentionBackend):
    """Every token attends to nothing."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, cache: KVLayer, meta: AttentionMetadata
    ) -> Tensor:
        return q


@dataclass
class OnMeta:
    """What layers ask of their worker."""

    dtype: torch.dtype
    cache_dtype: torch.dtype
    page_size: int = 16
    device: torch.device = field(default_factory=lambda: torch.device("meta"))


@cache
def watched(kind: type[nn.Module]) -> type[nn.Module]:
    """The same class, whose modules note in `computed` that their own forward has begun."""

    def forward(self: Any, *inputs: Any, **named: Any) -> Any:
        self.computed = True
        return kind.forward(self, *inputs, **named)

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def rehearse(plan: ParallelPlan, dtype: torch.dtype, forward: Forward | None = None) -> list[Call]:
    """The modules that own parameters or do a step of their own, in the order in which they run.

    `forward`: how to call a model that is not called with a `Batch`.
    """
    calls: list[Call] = []
    running: list[tuple[Call, nn.Module]] = []
    tokens = plan.tensor  # at least one for each rank that gets a share of them
    sampling = False

    def note(kind: str, x: Tensor) -> None:
        made, module = running[-1]
        nbytes = x.numel() * x.element_size() // tokens
        made.sends.append(Collective(kind, nbytes, before=not getattr(module, "computed", True)))

    def enter(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        uses = [names[value] for value in inputs if isinstance(value, torch.nn.Module)]
        kind = type(module).__bases__[1] if isinstance(module, Guard) else type(module)
        calls.append(Call(names[module], kind.__name__, uses=uses, sampled=sampling))
        running.append((calls[-1], module))
        if isinstance(module, Guard):
            module.computed = False  # type: ignore[assignment]

    def leave(*_: Any) -> None:
        running.pop()

    model = _model(plan, dtype, Notes(plan.tensor, note))
    names = {module: name for name, module in model.named_modules()}
    for module in names:
        own = next(module.parameters(recurse=False), None) is not None
        if own or isinstance(module, Guard) or not list(module.children()):
            module.register_forward_pre_hook(enter)
            module.register_forward_hook(leave)
    ids = torch.zeros(tokens, dtype=torch.long, device="meta")
    with torch.inference_mode():
        if forward is not None:
            forward(model, ids)
            return calls
        hidden = model(_batch(ids))
        sampling = True
        model.logits(hidden)  # type: ignore[operator]
    return calls


def _model(plan: ParallelPlan, dtype: torch.dtype, comm: Communicator) -> nn.Module:
    """Rank 0's model as a worker has it, with guards, without memory and without kernels."""
    model = allocate(plan.local_model(0), "meta", dtype).eval().requires_grad_(False)
    for rule in plan.rules:
        if rule.strategy.guard is not None:
            module = model.get_submodule(rule.module)
            module.__class__ = watched(type(module))
    guard(model, plan, 0, comm)
    layers = [module for module in model.modules() if isinstance(module, Attention)]
    nowhere = torch.empty(0, device="meta")
    caches = [KVLayer(nowhere, nowhere)] * (1 + max((m.layer for m in layers), default=0))
    kernels, options = Shapes(Kernels.Options()), NoAttention.Options()
    bind(model, kernels, NoAttention, options, caches, OnMeta(dtype, dtype), positions=1)
    return model


def _batch(ids: Tensor) -> Batch:
    """One step in which each token is a request of its own."""
    count = len(ids)
    narrow = ids.to(torch.int32)
    where = AttentionMetadata(
        query_start=narrow.new_zeros(count + 1),
        context_len=narrow,
        page_table=narrow[:, None],
        slots=ids,
        max_query=1,
        max_context=1,
        decodes=count,
        query_lens=[1] * count,
        context_lens=[1] * count,
    )
    rows: Any = None  # nobody samples
    return Batch(ids, ids, where, ids, rows)
